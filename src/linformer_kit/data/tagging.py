"""Spans of a text as labels of its tokens, and back.

Every token has a label: B for the first token of a span, I for its others, O elsewhere. A token
belongs to a span if they share a character that is not white space. So a span that begins or ends
inside a token grows to the token's limits, and of two spans within one token the second has no
label; both are counted.

Tokens of white space have no label. Tokens that a word was cut into agree: all have the label of
the first one. A word is a run of letters, digits and accents; in scripts without spaces, one
character.

A document longer than a row is cut into overlapping pieces. A piece answers for the spans that
begin in its core; their ends may lie in the rest of it, which is context.
"""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .iob import spans_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spans import Span


SPACELESS = (("\u0e00", "\u0eff"), ("\u1000", "\u109f"), ("\u1780", "\u17ff"))  # Thai to Khmer


class Labelled(NamedTuple):
    """The labels of the tokens of a text."""

    labels: np.ndarray  # (N) numbers
    lost: list[str]  # types of the spans that no token has a label for
    moved: int  # spans that begin or end inside a token or a word


class Found(NamedTuple):
    """A span that a model has found: characters, the number of its type, and how sure it is."""

    start: int
    end: int
    type: int
    score: float  # the mean probability of its words' labels


def token_ranges(offsets: Sequence[tuple[int, int]], text: str) -> np.ndarray:
    """(N, 2): the characters of each token without white space around them; start = end if none.

    Characters that belong to no token, such as an accent that the tokenizer strips, go with the
    token before them.
    """
    ranges = np.zeros((len(offsets), 2), dtype=np.int64)
    for place, (start, end) in enumerate(offsets):
        following = offsets[place + 1][0] if place + 1 < len(offsets) else len(text)
        while end < following and not text[end].isspace():
            end += 1
        while start < end and text[start].isspace():
            start += 1
        while end > start and text[end - 1].isspace():
            end -= 1
        ranges[place] = start, end
    return ranges


def word_starts(ranges: np.ndarray, text: str) -> np.ndarray:
    """(N): whether each token begins a word; False for the other tokens of the word."""
    starts = np.ones(len(ranges), dtype=bool)
    for place in range(1, len(ranges)):
        start, before = int(ranges[place, 0]), int(ranges[place - 1, 1])
        if start < before:  # bytes of one character
            starts[place] = False
        elif start == before and 0 < start < len(text):
            starts[place] = not (_in_word(text[start - 1]) and _in_word(text[start]))
    return starts


def _in_word(character: str) -> bool:
    """Whether a character is joined with its like to a word."""
    if character.isascii():
        return character.isalnum()
    if unicodedata.category(character)[0] not in "LMN":
        return False
    spaceless = any(first <= character <= last for first, last in SPACELESS)
    return not spaceless and unicodedata.east_asian_width(character) not in "WF"


def by_word(numbers: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Label numbers (N) in which the tokens of a word have the label of its first token."""
    first = np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))
    inherited = numbers[first]
    inside = inherited + inherited % 2  # B becomes I, and O stays O
    return np.where(starts | (first == np.arange(len(starts))), numbers, inside)


def label_tokens(
    ranges: np.ndarray, starts_word: np.ndarray, spans: Sequence[Span], types: dict[str, int]
) -> Labelled:
    """Labels of the tokens with these ranges; `spans` are in order and do not overlap."""
    labels = np.zeros(len(ranges), dtype=np.int64)
    # Tokens of one character split into bytes have the same range: ends do not decrease.
    starts, ends = ranges[:, 0], np.maximum.accumulate(ranges[:, 1])
    real = ranges[:, 1] > ranges[:, 0]
    lost, moved, free = [], 0, 0
    for span in spans:
        first = max(free, int(np.searchsorted(ends, span.start, side="right")))
        last = int(np.searchsorted(starts, span.end, side="left"))
        inside = first + np.flatnonzero(real[first:last])
        if not len(inside):
            lost.append(span.label)
            continue
        first, last = int(inside[0]), int(inside[-1]) + 1
        number = 1 + 2 * types[span.label]
        labels[first] = number
        labels[first + 1 : last] = number + 1
        inside_token = starts[first] != span.start or ranges[last - 1, 1] != span.end
        inside_word = not starts_word[first] or (last < len(ranges) and not starts_word[last])
        moved += bool(inside_token or inside_word)
        free = last
    return Labelled(labels, lost, moved)


def cores(pieces: Sequence[range]) -> list[range]:
    """The tokens that each piece of a document answers for: all that are read, each once.

    Two pieces share their overlap, so that every token has context on both sides.
    """
    limits = [(one.stop + other.start + 1) // 2 for one, other in pairwise(pieces)]
    starts, ends = [pieces[0].start, *limits], [*limits, pieces[-1].stop]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def spans_of_tokens(
    ranges: np.ndarray, starts: np.ndarray, pieces: Sequence[range], likely: Sequence[np.ndarray]
) -> list[Found]:
    """The spans that label probabilities (N, C) of each piece stand for, in order.

    ranges (L, 2): the characters of all tokens of the document. starts (L): which begin a word.
    Where two pieces disagree, so that
    their spans overlap, the earlier one stays.
    """
    found: list[Found] = []
    for piece, core, rows in zip(pieces, cores(pieces), likely, strict=True):
        here = ranges[piece.start : piece.stop]
        real = np.flatnonzero(here[:, 1] > here[:, 0])  # white space has no label
        here, rows = here[real], rows[real]
        begun = starts[piece.start : piece.stop][real]
        numbers = by_word(rows.argmax(1), begun)
        for type_, first, last in spans_of(numbers).tolist():
            start, end = int(here[first, 0]), int(here[first:last, 1].max())
            if piece.start + real[first] not in core or (found and start < found[-1].end):
                continue
            words = first + np.flatnonzero(begun[first:last])
            words = words if len(words) else np.array([first])
            found.append(Found(start, end, type_, float(rows[words, numbers[words]].mean())))
    return found
