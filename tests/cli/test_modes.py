"""What commands write has the mode that the umask says."""

from __future__ import annotations

import os
import shutil

import pytest

from linformer_kit.cli.app import run

from ..convert.pretrained import write_model, write_text
from ..convert.test_source import esm, word_tokenizer
from ..search.conftest import save_model
from ..train import tiny

MASK = 0o027


def trained(folder):
    return ["train", str(tiny.write(folder, steps=2, eval_every=2, save_every=1))]


def predicted(folder):
    assert run(trained(folder)) == 0
    run_folder = str(folder / "run")
    rows = folder / "rows.txt"
    rows.write_text("the <mask> runs\n")
    return ["predict", run_folder, "--file", str(rows), "--out", str(folder / "rows.jsonl")]


def exported(folder):
    assert run(trained(folder)) == 0
    return ["export", str(folder / "run"), "--to", str(folder / "onnx/model.onnx"), "--int8"]


def converted(folder):
    text = write_text(folder / "text.txt")
    write_model(folder / "bert")
    options = ["--text", str(text), "--k", "4", "--window", "4", "--steps", "2"]
    saved = ["--save-every", "1", "--report", str(folder / "page.html"), "--no-timing"]
    return ["convert", str(folder / "bert"), "--out", str(folder / "out"), *options, *saved]


def converted_in_place(folder):
    esm().save_pretrained(folder / "esm")
    word_tokenizer(40).save_pretrained(folder / "esm")
    return ["convert", str(folder / "esm"), "--out", str(folder / "out"), "--k", "4"]


def indexed(folder):
    pytest.importorskip("sentence_transformers")
    save_model(folder / "model")
    (folder / "documents").mkdir()
    (folder / "documents/dog.txt").write_text("the dog runs of the old road. " * 3)
    model, out = str(folder / "model"), str(folder / "index")
    return ["index", str(folder / "documents"), "--model", model, "--out", out]


@pytest.mark.parametrize(
    "make", [trained, predicted, exported, converted, converted_in_place, indexed]
)
def test_files_follow_the_umask(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)
    before = os.umask(MASK)
    try:
        inputs = tmp_path / "inputs"
        inputs.mkdir()
        assert run(make(inputs)) == 0
    finally:
        os.umask(before)
    shutil.rmtree(inputs / "bert", ignore_errors=True)  # transformers' own files
    shutil.rmtree(inputs / "esm", ignore_errors=True)
    shutil.rmtree(inputs / "model", ignore_errors=True)
    wrong = {
        str(path.relative_to(inputs)): oct(path.stat().st_mode & 0o777)
        for path in inputs.rglob("*")
        if path.stat().st_mode & 0o777 != (0o777 if path.is_dir() else 0o666) & ~MASK
    }
    assert not wrong
