"""The page of a conversion: made of its record, with everything that was measured."""

from __future__ import annotations

import json

import pytest
import torch

from linformer_kit.cli.app import run
from linformer_kit.convert.cost import tokens
from linformer_kit.convert.extended_teacher import extended_encoder
from linformer_kit.errors import UserError
from linformer_kit.evidence.report.conversion import sections, verdict, write_page

from ...convert.pretrained import FAMILIES, pretrained, write_model, write_text


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A conversion with everything, and its page."""
    folder = tmp_path_factory.mktemp("page")
    write_model(folder / "bert")
    write_text(folder / "text.txt")
    given = ["--k", "auto", "--window", "4", "--keep-full", "auto"]
    training = ["--text", str(folder / "text.txt"), "--steps", "2"]
    page = folder / "page.html"
    words = ["convert", str(folder / "bert"), "--out", str(folder / "out"), *given, *training]
    assert run([*words, "--report", str(page)]) == 0
    return folder, page.read_text(), json.loads((folder / "out/conversion.json").read_text()), words


def test_the_page_has_every_section(converted):
    _, page, record, _ = converted
    names = [section.name for section in sections(record)]
    assert names == ["kept", "layers", "cost", "choice", "spectrum", "made"]
    for words in (
        "cosine of embeddings",
        "masked-LM perplexity",
        "after distillation",
        "Error of each layer",
        "times as fast",
        "Which layers keep full attention",
        "Ranks that keep the attention",
    ):
        assert words in page
    assert verdict(record) in page.replace("&#39;", "'")
    assert "http://" not in page.split("<script>")[0]


def test_time_and_memory_of_both_are_measured(converted):
    _, _, record, _ = converted
    assert [one["length"] for one in record["cost"]] == [20]  # no longer than the original
    for one in record["cost"]:
        for kind in ("original", "converted"):
            assert len(one[kind]["seconds"]) == 3
            assert one[kind]["bytes"] is not None or one[kind]["memory_note"]
    assert len(record["choices"]["errors_alone"]) == 3
    assert len(record["settings"]["k"]) == 3


def test_a_second_page_measures_nothing_again(converted, tmp_path, monkeypatch):
    folder, _, record, words = converted
    monkeypatch.setattr("linformer_kit.convert.measurements.prepare", None)  # would fail if called
    assert run([*words, "--report", str(tmp_path / "again.html")]) == 0
    assert json.loads((folder / "out/conversion.json").read_text()) == record


def test_timing_can_be_left_out(converted, tmp_path):
    _, _, _, words = converted
    assert run([*words, "--report", str(tmp_path / "short.html"), "--no-timing"]) == 0
    assert "times as fast" not in (tmp_path / "short.html").read_text()


def test_a_page_without_text_says_that_nothing_was_compared(tmp_path):
    write_model(tmp_path / "bert")
    page = tmp_path / "page.html"
    given = ["--k", "4", "--window", "4", "--report", str(page), "--no-timing"]
    assert run(["convert", str(tmp_path / "bert"), "--out", str(tmp_path / "out"), *given]) == 0
    assert "was not compared with the original" in page.read_text()


def test_a_file_of_something_else_is_left_alone(converted, tmp_path, capsys):
    _, _, record, words = converted
    file = tmp_path / "notes.html"
    file.write_text("mine")
    with pytest.raises(UserError, match="was not written by this command"):
        write_page(record, file)
    assert run([*words, "--report", str(file)]) == 2
    assert "Name another file with --report" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_hostile_names_are_escaped(converted, tmp_path):
    _, _, record, _ = converted
    record = {**record, "options": {**record["options"], "model": "<script>alert(1)</script>"}}
    write_page(record, tmp_path / "page.html")
    assert "<script>alert(1)" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_original_with_extended_positions(family):
    teacher = pretrained(family)
    limit = 20 if "oberta" not in family and family != "Camembert" else 18
    longer = extended_encoder(teacher, 3 * limit)
    ids = torch.randint(5, 60, (1, limit), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(
            longer(ids).last_hidden_state, teacher(ids).last_hidden_state, atol=1e-5, rtol=1e-5
        )
        assert longer(ids.repeat(1, 3)).last_hidden_state.shape[1] == 3 * limit
    assert extended_encoder(teacher, limit) is teacher.base_model


@pytest.mark.parametrize(("length", "vocabulary"), [(5, 3), (100, 60), (40, 30000)])
def test_tokens_are_in_the_vocabulary(length, vocabulary):
    ids = tokens(length, vocabulary)["input_ids"]
    assert ids.shape == (1, length)
    assert 0 <= int(ids.min()) <= int(ids.max()) < vocabulary
