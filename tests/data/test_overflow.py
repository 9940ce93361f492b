"""Cutting long texts and merging the answers to their pieces, against plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from linformer_kit.data.overflow import (
    Overflow,
    Reading,
    at_boundaries,
    covered,
    mean_of_pieces,
    most_central,
    overlapping,
)
from linformer_kit.errors import UserError


@pytest.mark.parametrize("overlap", [0, 1, 3, 6])
@pytest.mark.parametrize("length", [1, 6, 7, 8, 13, 14, 50, 1001])
def test_pieces_cover_every_token_and_repeat_at_least_the_overlap(length, overlap):
    room = 7
    pieces = overlapping(length, room, overlap)
    assert sorted({place for piece in pieces for place in piece}) == list(range(length))
    assert covered(pieces) == length
    assert {len(piece) for piece in pieces} == {min(room, length)}
    for one, next_one in itertools.pairwise(pieces):
        assert one.stop - next_one.start >= overlap
        assert one.start < next_one.start
    fewest = next(
        count for count in range(1, 2000) if room + (count - 1) * (room - overlap) >= length
    )
    assert len(pieces) == fewest


@pytest.mark.parametrize("length", [5, 8, 9, 30])
@pytest.mark.parametrize("policy", ["error", "truncate", "chunk", "extend"])
def test_what_is_read_of_shorter_equal_and_longer_texts(policy, length):
    overflow = Overflow(policy, max_length=10, frame=2, overlap=0.25)
    longer = length > 8
    if policy == "error" and longer:
        with pytest.raises(UserError, match=rf"at most data.max_length = 10 .*: got {length + 2}"):
            overflow.pieces(length)
        return
    pieces = overflow.pieces(length)
    reading = overflow.reading(length, pieces)
    read = 10 if longer and policy == "truncate" else length + 2
    assert reading == Reading(policy, read, length + 2)
    assert (reading.line() is None) == (read == length + 2)
    if policy != "extend":
        assert all(len(piece) + 2 <= 10 for piece in pieces)


def test_the_end_of_a_prompt_is_kept():
    overflow = Overflow("truncate", max_length=10, frame=1, keep="end")
    assert overflow.pieces(25) == [range(16, 25)]


def test_without_a_limit_everything_is_read():
    assert Overflow("error", max_length=None).pieces(10**6) == [range(10**6)]


def test_a_frame_that_leaves_no_room_is_refused():
    with pytest.raises(UserError, match="room for a token beside the 2 of the frame"):
        Overflow("chunk", max_length=2, frame=2).pieces(5)


def test_the_line_says_how_much_was_not_read():
    line = Reading("truncate", 512, 2048).line()
    assert line == "75.0 % of the tokens (1,536 of 2,048) were not read (on_overflow: truncate)."


def test_a_token_belongs_to_the_piece_with_most_context():
    pieces = [range(8), range(5, 13), range(10, 18)]
    expected = []
    for place in range(20):
        context = [
            min(place - piece.start, piece.stop - 1 - place) if place in piece else -1
            for piece in pieces
        ]
        expected.append(context.index(max(context)) if max(context) >= 0 else -1)
    assert most_central(pieces, np.arange(20)).tolist() == expected


def test_means_are_weighted_by_tokens():
    values = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    as_tokens = np.repeat(values, [10, 30, 60], axis=0)  # one row for each token
    np.testing.assert_allclose(mean_of_pieces(values, [10, 30, 60]), as_tokens.mean(0))


def test_pieces_end_at_sentences_then_words_then_anywhere():
    sentences = np.zeros(30, dtype=bool)
    words = np.zeros(30, dtype=bool)
    sentences[[8, 9]] = True
    words[[12, 15, 18]] = True
    pieces = at_boundaries(30, 10, sentences, words)
    assert pieces == [range(9), range(9, 18), range(18, 28), range(28, 30)]
