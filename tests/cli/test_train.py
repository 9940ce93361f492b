"""`linformer prepare` and `train`: a mistake is one line, exit code 2, and nothing overwritten."""

from __future__ import annotations

import json

import pytest

from ..train import tiny
from .test_main import run


def test_prepare_tells_what_it_made(capsys, trained):
    code, out, _ = run(capsys, "prepare", str(trained))
    assert code == 0
    assert json.loads(out)["parts"]["train"]["words"] > 100


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (None, ["train.stepz=3"], "Did you mean 'train.steps'?"),
        (None, ["train.steps=many"], "train.steps: input should be a valid integer"),
        (None, ["data.train=nowhere.txt"], "there is no file or folder nowhere.txt"),
        (None, ["model.k=64"], "k"),
        (None, ["train.fsdp=true"], "needs more than one process"),
        (None, ["train.batch_size=9", "train.accumulate=2"], "multiple"),
        (b"", [], "the training corpus is empty"),
        (b"ok\n\xc3\x28\n", [], "is not UTF-8: line 2 holds the byte 0xc3"),
        (b"x" * 1_000_001, ["data.max_document_mb=1"], "line 1 of"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, tmp_path, change, arguments, message):
    path = tiny.write(tmp_path)
    if change is not None:
        (tmp_path / "text.txt").write_bytes(change)
    code, out, err = run(capsys, "train", str(path), *arguments)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if line.startswith("linformer: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(capsys, trained):
    before = {p: p.stat().st_mtime_ns for p in (trained.parent / "run").rglob("*") if p.is_file()}
    code, _, err = run(capsys, "train", str(trained), "train.lr=0.5")
    assert code == 2
    assert "--overwrite" in err
    assert before == {
        p: p.stat().st_mtime_ns for p in (trained.parent / "run").rglob("*") if p.is_file()
    }
