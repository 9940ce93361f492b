"""--dry-run: what would be done, and nothing is written."""

from __future__ import annotations

import re

import pytest

from linformer_kit.cli.app import run

from .pretrained import pretrained, write_model, write_text


@pytest.fixture
def given(tmp_path):
    write_model(tmp_path / "bert")
    write_text(tmp_path / "text.txt")
    return ["convert", str(tmp_path / "bert"), "--out", str(tmp_path / "out"), "--dry-run"]


def files(folder):
    return sorted(path for path in folder.rglob("*"))


def test_a_training_is_rehearsed(given, tmp_path, capsys):
    before = files(tmp_path)
    sizes = ["--max-length", "60", "--k", "4", "--window", "4", "--keep-full", "1"]
    text = ["--text", str(tmp_path / "text.txt"), "--steps", "50"]
    assert run([*given, *sizes, *text]) == 0
    said = capsys.readouterr().out
    extra = 40 * 16  # rows of the position table
    count = sum(p.numel() for p in pretrained("Bert", "ForMaskedLM").parameters())
    assert f"parameters      {count + extra:,}, +{extra:,} against the original" in said
    assert "exchanged       2 of 3 layers: k 4, window 4, 1 global, mean" in said
    assert "full attention  layer 1" in said
    assert "1,080 tokens to train on, 120 held out; rows of 20 tokens" in said
    assert re.search(r"time a step .* layers, .* whole model, .* rows of 40, .* rows of 60", said)
    assert re.search(r"memory .* for both models, gradients and Adam", said)
    assert "for 50 steps" in said
    assert files(tmp_path) == before


def test_minutes_are_told_as_steps(given, tmp_path, capsys):
    text = ["--text", str(tmp_path / "text.txt"), "--minutes", "5", "--k", "4", "--window", "4"]
    assert run([*given, *text]) == 0
    assert re.search(r"5 minutes, about [\d,]+ steps", capsys.readouterr().out)


def test_a_conversion_without_training_is_rehearsed(given, tmp_path, capsys):
    before = files(tmp_path)
    assert run([*given, "--k", "4", "--window", "4", "--max-length", "60"]) == 0
    said = capsys.readouterr().out
    assert "for one input of 60 tokens" in said
    assert "full attention  no layer" in said
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--report", "page.html"], "--report has no effect with --dry-run"),
        (["--no-timing"], "--no-timing has no effect without --report"),
    ],
)
def test_options_without_effect_are_refused(given, capsys, options, message):
    assert run([*given, "--k", "4", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_of_something_else_is_refused_already(given, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    assert run([*given, "--k", "4"]) == 2
    assert "is not a conversion's folder: it is left alone" in capsys.readouterr().err
