"""Spans become labels of tokens and come back as the same characters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linformer_kit.config.schema import TokenizerSection
from linformer_kit.data.builtin import letters
from linformer_kit.data.spans import Span, Spans
from linformer_kit.data.tagging import (
    by_word,
    cores,
    label_tokens,
    spans_of_tokens,
    token_ranges,
    word_starts,
)
from linformer_kit.data.tokenizer import train

TYPES = {name: place for place, name in enumerate(letters.TYPES)}
LETTERS = list(letters.records({"documents": 60}, 0))
HARD = "  Ünal 👩‍💻 cafe\u0301 Zoe\u0308\r\n\r\n\u00a0naïve\tend \r\n"
KINDS = ["bpe", "unigram", "wordpiece", "byte", "character"]


@pytest.fixture(scope="module")
def tokenizers():
    made = {}

    def tokenizer(kind):
        if kind not in made:
            section = TokenizerSection(kind=kind, vocab_size=500)
            made[kind] = train(section, [*(letter["text"] for letter in LETTERS), HARD])
        return made[kind]

    return tokenizer


def back(text, offsets, spans, pieces=None):
    """Spans as labels, certain predictions of these labels, and spans of them again."""
    ranges = token_ranges(offsets, text)
    starts = word_starts(ranges, text)
    labelled = label_tokens(ranges, starts, spans, TYPES)
    likely = np.eye(1 + 2 * len(TYPES))[labelled.labels]
    pieces = pieces or [range(len(ranges))]
    found = spans_of_tokens(ranges, starts, pieces, [likely[p.start : p.stop] for p in pieces])
    return labelled, [Span(f.start, f.end, letters.TYPES[f.type]) for f in found]


@pytest.mark.parametrize("kind", KINDS)
def test_spans_come_back_exactly(tokenizers, kind):
    """Letters with emoji, combining marks, CRLF and white space around them."""
    moved = lost = total = 0
    for letter in LETTERS:
        text, spans = letter["text"], letter["spans"]
        encoding = tokenizers(kind).encode(text, add_special_tokens=False)
        labelled, found = back(text, encoding.offsets, spans)
        total += len(spans)
        moved, lost = moved + labelled.moved, lost + len(labelled.lost)
        if not labelled.moved and not labelled.lost:
            assert found == spans
    # A token may hold a space or a full stop together with letters; characters may not.
    assert lost == 0
    assert moved <= (0 if kind in ("character", "byte", "bpe", "wordpiece") else total // 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("word", ["Ünal", "👩‍💻", "cafe\u0301", "Zoe\u0308", "naïve", "end"])
def test_offsets_are_those_of_the_original_text(tokenizers, kind, word):
    start = HARD.index(word)
    span = Span(start, start + len(word), "person")
    encoding = tokenizers(kind).encode(HARD, add_special_tokens=False)
    labelled, found = back(HARD, encoding.offsets, [span])
    assert not labelled.moved
    assert found == [span]
    assert HARD[found[0].start : found[0].end] == word


def test_spans_that_tokens_cannot_show_are_counted():
    text, offsets = "Ada Bo", [(0, 3), (3, 6)]
    grown, found = back(text, offsets, [Span(1, 3, "person")])
    assert (grown.moved, found) == (1, [Span(0, 3, "person")])
    inside, _ = back("Bobby", [(0, 3), (3, 5)], [Span(0, 3, "person")])
    assert inside.moved == 1
    shared, found = back(text, offsets, [Span(0, 1, "person"), Span(1, 3, "date")])
    assert (shared.lost, found) == (["date"], [Span(0, 3, "person")])
    blank, found = back("a  b", [(0, 1), (1, 3), (3, 4)], [Span(1, 2, "date")])
    assert (blank.lost, found) == (["date"], [])


def test_neighbouring_spans_of_one_type_stay_two():
    spans = Spans([Span(0, 3, "person"), Span(4, 6, "person")])
    assert back("Ada Bo", [(0, 3), (3, 6)], spans)[1] == spans


def test_tokens_of_a_word_agree():
    text = "€1,200 caféXY 東京 ไทย e\u0301x"
    ranges = np.array([(i, i + 1) for i in range(len(text))])
    begun = [text[i] for i in np.flatnonzero(word_starts(ranges, text)) if text[i] != " "]
    assert begun == list("€1,2c東京ไทยe")
    numbers = np.array([1, 0, 3, 0, 0, 4, 1])
    starts = np.array([True, False, True, True, False, True, False])
    assert by_word(numbers, starts).tolist() == [1, 2, 3, 0, 0, 4, 4]
    cut = np.array([False, False, True])  # a piece may begin inside a word
    assert by_word(np.array([2, 0, 0]), cut).tolist() == [2, 2, 0]


@given(st.integers(1, 40), st.integers(3, 9), st.integers(0, 2))
def test_cores_hold_every_token_once(tokens, room, overlap):
    pieces, at = [], 0
    while True:
        pieces.append(range(at, min(at + room, tokens)))
        if pieces[-1].stop == tokens:
            break
        at += room - overlap
    owned = cores(pieces)
    assert [token for core in owned for token in core] == list(range(tokens))
    assert all(p.start <= c.start and c.stop <= p.stop for p, c in zip(pieces, owned, strict=True))


def test_a_span_across_two_pieces_is_found_once():
    words = ["a", "b", "c", "d", "e", "f", "g", "h"]
    text, offsets = " ".join(words), [(2 * i, 2 * i + 1) for i in range(8)]
    spans = [Span(6, 9, "date"), Span(10, 11, "person")]  # d e, f
    pieces = [range(6), range(2, 8)]
    assert back(text, offsets, spans, pieces)[1] == spans


def test_disagreeing_pieces_never_give_overlapping_spans():
    ranges = np.array([(i, i + 1) for i in range(6)])
    one = np.eye(3)[[0, 0, 1, 2]]  # a span at 2, 3
    other = np.eye(3)[[0, 1, 2, 0]]  # a span at 3, 4
    starts = np.ones(6, dtype=bool)
    found = spans_of_tokens(ranges, starts, [range(4), range(2, 6)], [one, other])
    assert [(f.start, f.end) for f in found] == [(2, 4)]
