"""`linformer keras-time`: the summary, both times, records; and completion of the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from linformer_kit.cli import main
from linformer_kit.measure.records import read_records

TINY = ["--sequence-length", "24,32", "--batch-size", "2", "--embedding-dim", "8"]
TINY += ["--projection-dim", "4", "--num-heads", "2", "--hidden-dim", "4", "--rounds", "2"]
LINFORMER = Path(sys.executable).with_name("linformer")


@pytest.fixture(autouse=True)
def _on_torch(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["keras-time", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_it_prints_the_summary_and_both_times_and_writes_records(capsys, tmp_path):
    out = tmp_path / "records.jsonl"
    code, text, _ = run(capsys, *TINY, "--out", str(out))
    assert code == 0
    parameters = 4 * (8 * 8) + 3 * 8 + 8 + 2 * 4 * 24
    assert f"Total params: {parameters}" in text
    assert "times faster" in text
    records, problems = read_records(out)
    assert problems == []
    assert [(r["length"], r["contestant"], len(r["seconds"])) for r in records] == [
        (24, "LinearMultiHeadAttention", 2),
        (24, "MultiHeadAttention", 2),
        (32, "LinearMultiHeadAttention", 2),
        (32, "MultiHeadAttention", 2),
    ]
    assert records[0]["parameters"] == parameters
    assert records[0]["machine"]["keras"]
    assert records[0]["machine"]["torch"]


def test_without_the_stock_layer_there_is_one_time(capsys, tmp_path):
    code, text, _ = run(capsys, *TINY, "--no-stock", "--out", str(tmp_path / "records.jsonl"))
    assert code == 0
    assert "times faster" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sequence-length", "16"], "projection_dim must be at most the sequence length"),
        (["--sequence-length", "long"], "--sequence-length takes whole numbers"),
        (["--num-heads", "0"], "--num-heads"),
        (["--backend", "numpie"], "--backend"),
        (["--backend", "jax"], "Keras runs on torch in this process already"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, message):
    import keras  # noqa: F401

    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("blocked", "message"),
    [
        ("keras", "linformer_kit.keras needs Keras 3: pip install 'linformer-kit[keras]'"),
        ("jax", "Keras needs its backend, jax, which is not installed"),
    ],
)
def test_what_is_missing_is_named_with_the_remedy(blocked, message):
    code = (
        f"import sys; sys.modules[{blocked!r}] = None; from linformer_kit.cli import main; "
        f"main(['keras-time', '--backend', 'jax'])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr.startswith("linformer: ")
    assert message in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["keras-t"], "keras-time"),
        (["keras-time", "--sequence"], "--sequence-length"),
        (["keras-time", "--backend", "te"], "tensorflow"),
    ],
)
def test_the_shell_completes_commands_options_and_values(typed, offered):
    environment = os.environ | {
        "_LINFORMER_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["linformer", *typed]),
        "COMP_CWORD": str(len(typed)),
    }
    answer = subprocess.run([LINFORMER], env=environment, capture_output=True, text=True)
    assert offered in answer.stdout.split()
