"""`linformer prepare` and `train`: a mistake is one line, exit code 2, and nothing overwritten."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from linformer_kit.config import shipped

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
        (None, ["data.train=nowhere.txt"], "there is no file or folder nowhere.txt. Name your own"),
        (None, ["model.k=64"], "k"),
        (None, ["train.fsdp=true"], "needs more than one process"),
        (None, ["train.batch_size=9", "train.accumulate=2"], "multiple"),
        (b"", [], "the training corpus is empty"),
        (b"ok\n\xc3\x28\n", [], "is not UTF-8: it holds the byte 0xc3"),
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


TRANSLATION = Path(__file__).parents[2] / "docs/guides/translation.md"
NEWS = [("newstest2013", tiny.SENTENCES[:5]), ("newstest2014", tiny.SENTENCES[5:12])]
SMALL = [
    *(f"model.{name}={value}" for name, value in {**tiny.MODEL, "k": 8}.items()),
    "tokenizer.vocab_size=300", "data.max_length=64", "train.steps=4", "train.batch_size=8",
    "train.accumulate=1", "train.precision=float32", "train.eval_every=4", "train.save_every=4",
    "train.threads=1", "evaluate.max_new_tokens=8", "evaluate.beams=1",
]  # fmt: skip


def test_the_way_from_public_files_to_a_bleu_score(capsys, tmp_path, monkeypatch):
    """The commands of the guide, on a few lines in files of the same form."""
    monkeypatch.chdir(tmp_path)
    Path("training").mkdir()
    files = ["training/europarl-v7.de-en", "training/news-commentary-v9.de-en"]
    for name, lines in (*((f, tiny.SENTENCES) for f in files), *NEWS):
        Path(f"{name}.en").write_text("\n".join(lines) + "\n\n")  # corpora hold empty lines
        Path(f"{name}.de").write_text("\n".join(lines).upper() + "\n\n")
    guide = TRANSLATION.read_text(encoding="utf-8").replace("\\\n", " ")
    train, evaluate = re.findall(r"^linformer (.*wmt14-k32.*)$", guide, re.MULTILINE)
    code, _, err = run(capsys, *shlex.split(train), *SMALL)
    assert code == 0, err
    scores = json.loads(Path("runs/wmt14-k32/evaluation.json").read_text())
    assert (scores["part"], scores["rows"]) == ("test", 7)
    assert "tok:13a" in scores["metrics"]["signatures"]["bleu"]
    code, _, _ = run(capsys, *shlex.split(evaluate))
    again = json.loads(Path("runs/wmt14-k32/evaluation.json").read_text())
    assert (code, again["metrics"]["bleu"]) == (0, scores["metrics"]["bleu"])


def test_missing_data_of_a_shipped_configuration_are_found_by_what_is_said(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, "train", "wmt14-k32")
    assert code == 2
    assert "there is no file or folder wmt14_translate_de-en_train.csv" in err
    assert "linformer configs NAME copies it" in err
    assert not Path("runs").exists()
    head = shipped.resolve(Path("wmt14-k32")).read_text().partition("\n\n")[0]
    for place in ("kaggle.com/datasets/", "statmt.org/wmt14/", "sacrebleu -t wmt14/full"):
        assert place in head


def test_wandb_is_asked_for_before_the_work(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    path = tiny.write(tmp_path)
    code, _, err = run(capsys, "train", str(path), "--wandb")
    assert code == 2
    assert "--wandb needs the package wandb: pip install wandb" in err
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "prepared").exists()


def test_wandb_logs_offline_into_the_folder_of_the_run(capsys, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in ("PROJECT", "DIR", "SILENT"):  # what the command sets is unset again
        monkeypatch.setenv(f"WANDB_{name}", "x")
        monkeypatch.delenv(f"WANDB_{name}")
    monkeypatch.setenv("WANDB_MODE", "offline")
    code, _, err = run(capsys, "train", str(tiny.write(tmp_path)), "train.steps=6", "--wandb")
    assert code == 0, err
    (log,) = tmp_path.glob("run/wandb/offline-run-*/run-*.wandb")
    logged = log.read_bytes()
    for name in ("train/loss", "train/learning_rate", "eval/perplexity", "hidden_size"):
        assert name.encode() in logged, name
    assert tiny.SENTENCES[0].encode() not in logged
