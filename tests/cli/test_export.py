"""`linformer export` and `predict --onnx`: what they print, and mistakes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from transformers.utils.logging import enable_progress_bar

from linformer_kit.cli import main

from ..export.tiny import tiny


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def model(tmp_path):
    tiny("LinformerForMaskedLM").save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_it_prints_the_largest_difference_and_the_cost_of_eight_bits(capsys, tmp_path, model):
    target = tmp_path / "new" / "model.onnx"
    enable_progress_bar()  # another test may have switched it off
    capsys.readouterr()
    code, out, err = run(capsys, "export", model, "--to", str(target), "--int8")
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith(f"{target}  ")
    assert "largest difference" in first
    assert "at lengths 40, 7, 1" in first
    assert second.startswith(f"{target.with_suffix('.int8.onnx')}  ")
    assert "the same choice in" in second
    assert sorted(path.name for path in target.parent.iterdir()) == [
        "model.int8.onnx",
        "model.onnx",
    ]


@pytest.mark.parametrize(
    ("source", "to", "message"),
    [
        ("none", "model.onnx", "there is no model folder"),
        ("other", "model.onnx", "is a model of linformer_kit.models: "),
        ("broken", "model.onnx", "is not a model's configuration"),
        ("model", "file/model.onnx", "cannot write "),
        ("model", "model.pt", "must end in .onnx"),
        ("run", "model.onnx", "has no best model"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path, model, source, to, message):
    (tmp_path / "file").write_text("")
    for folder, name, text in (
        ("other", "config.json", '{"architectures": ["BertForMaskedLM"]}'),
        ("broken", "config.json", "{"),
        ("run", "config.yaml", ""),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    capsys.readouterr()
    code, out, err = run(capsys, "export", str(tmp_path / source), "--to", str(tmp_path / to))
    assert (code, out) == (2, "")
    assert err.startswith("linformer: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_remedy(package, tmp_path):
    code = (
        f"import sys; sys.modules[{package!r}] = None; from linformer_kit.cli import main; "
        f"main(['export', {str(tmp_path)!r}, '--to', 'model.onnx'])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr == f"linformer: ONNX needs {package}: pip install 'linformer-kit[onnx]'\n"
