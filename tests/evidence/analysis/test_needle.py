"""The needle test: documents of the right length and depth, and right scores of exact retrieval."""

from __future__ import annotations

import random

import numpy as np
import pytest

from linformer_kit.data.builtin.needle import KINDS, needles
from linformer_kit.errors import UserError
from linformer_kit.evidence.analysis.needle import (
    NeedleOptions,
    documents,
    first_shares,
    needle_test,
)
from linformer_kit.evidence.analysis.needle_view import (
    figures,
    in_words,
    latest_needles,
    mean,
    sheet,
)
from linformer_kit.models.text_input import Frame

from .test_spectrum import MACHINE


class Words:
    """Counts of words, each in a place of its own: a text with a rare word is found by it."""

    def __init__(self, longest: int) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        from linformer_kit.data.builtin import needle as texts

        every = " ".join(
            f"{one.question} {one.answer}"
            for kind in KINDS
            for length in (128, 256)
            for one in needles(kind, 9, random.Random(f"{kind} {length} 0"), held_out=True)
        ) + " ".join([*texts._sentences(True), *texts.HELD_OUT_SHORT])
        split = pre_tokenizers.Whitespace()
        words = sorted({word for word, _ in split.pre_tokenize_str(every)})
        vocab = {word: place for place, word in enumerate(["<unk>", "<s>", "</s>", *words])}
        made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        made.pre_tokenizer = split
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
        self.frame = Frame((1,), (2,))
        self.longest = longest
        self.size = len(vocab)

    def vectors(self, rows):
        found = np.zeros((len(rows), self.size), dtype=np.float32)
        for number, row in enumerate(rows):
            assert len(row) <= self.longest
            np.add.at(found[number], row, 1.0)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def words():
    return Words(256)


def run(model, **options):
    chosen = NeedleOptions(lengths=(128, 256), depths=3, documents=3, **options)
    return needle_test(model, chosen, name="runs/words/best", machine=MACHINE)


@pytest.mark.parametrize("kind", KINDS)
def test_documents_have_their_length_and_the_needle_at_its_depth(words, kind):
    asked = needles(kind, 5, random.Random(f"{kind} 256 0"), held_out=True)
    depths = [0.0, 0.25, 0.5, 0.75, 1.0]
    made = documents(words, kind, asked, depths, 256, random.Random("y"))
    texts = []
    for needle, depth, ids in zip(asked, depths, made, strict=True):
        assert 256 - 60 < len(ids) + 2 <= 256
        text = words.tokenizer.decode(ids).replace(" ", "")
        hidden = needle.answer.replace(" ", "")
        assert text.count(hidden[:12]) >= 1
        at = text.index(hidden[:12]) / max(1, len(text) - len(hidden))
        assert at == pytest.approx(depth, abs=0.15)
        texts.append(text.replace(hidden, ""))
    assert len({text[:100] for text in texts}) == 1  # one haystack


def test_a_model_that_reads_everything_finds_every_rare_word(words):
    record = run(words)
    for part in record["parts"]:
        for cell in part["lengths"]:
            assert cell["accuracy"] == [1.0, 1.0, 1.0]
            assert cell["tokens_read"] == cell["tokens_total"] <= 9 * cell["length"]
            assert cell["pieces"] == 1
    assert "passkey: up to 256 tokens; needle: up to 256 tokens." in in_words(record)
    assert record == run(words)


def test_what_is_cut_off_is_not_found_and_it_is_said(words):
    words.longest = 100
    try:
        record, pieces = run(words), run(words, policy="chunk")
    finally:
        words.longest = 256
    for part in record["parts"]:
        at_256 = part["lengths"][1]["accuracy"]
        assert at_256[0] == 1.0
        assert max(at_256[1:]) < 0.5
        assert part["lengths"][1]["tokens_read"] == 9 * 100
    assert "Only the first 100 tokens of a document are read" in in_words(record)
    for part in pieces["parts"]:
        cell = part["lengths"][1]
        assert cell["pieces"] > 1
        assert cell["tokens_read"] == cell["tokens_total"]
        assert mean(cell) > 0.8
    assert "read in pieces, whose vectors are averaged" in in_words(pieces)


def test_equal_candidates_share_a_point():
    questions = np.eye(3, dtype=np.float32)
    same = np.ones((3, 3), dtype=np.float32)
    np.testing.assert_allclose(first_shares(questions, same), 1 / 3)
    np.testing.assert_allclose(first_shares(questions, np.eye(3)), 1.0)
    np.testing.assert_allclose(first_shares(questions, np.eye(3)[[1, 0, 2]]), [0, 0, 1])
    np.testing.assert_allclose(first_shares(questions, np.eye(3)[[0, 0, 2]]), [0.5, 1 / 3, 1])


def test_the_table_and_the_heat_maps_show_the_record(words):
    record = run(words)
    maps = figures(record)
    assert [one.name for one in maps] == ["needle-passkey", "needle-needle"]
    assert maps[0].columns == ("128", "256")
    assert maps[0].rows == ("0%", "50%", "100%")
    assert maps[0].values == ((1.0, 1.0),) * 3
    assert [row[0].text for row in sheet(record).rows] == ["128", "256"]
    other = {**record, "policy": "chunk"}
    assert latest_needles([record, {"kind": "spectrum"}, other, record]) == [record, other]


def test_mistakes_are_refused(words):
    with pytest.raises(UserError, match="room for its needle: got 12 tokens"):
        needle_test(words, NeedleOptions(lengths=(12,)), name="x", machine=MACHINE)
    with pytest.raises(UserError, match="at least 2 candidates"):
        NeedleOptions(depths=1, documents=1)
    with pytest.raises(UserError, match="truncate, chunk: got extend"):
        NeedleOptions(policy="extend")
