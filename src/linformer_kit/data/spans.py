"""Spans of a text: read from JSON, made of labelled words, checked, masked out.

Offsets are characters (Unicode code points, as in Python's `str`), the end is not included.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError, shown, user_input
from .iob import entities

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_LABEL = 1000  # characters
FORM = '{"start": 0, "end": 4, "label": "person"}'


class Span(NamedTuple):
    """A labelled piece of a text."""

    start: int
    end: int
    label: str


class Spans(list[Span]):
    """Spans of one text in order, each inside it, none overlapping another."""


def read_spans(value: Any, text: str, place: str) -> Spans:
    """Spans as JSON objects or as [start, end, label], in order; a list, or JSON text of one."""
    if isinstance(value, str):  # from a table
        with user_input(f"{place}: the spans are not valid JSON"):
            value = json.loads(value)
    if not isinstance(value, list):
        got = "null" if value is None else type(value).__name__
        raise UserError(f"{place}: spans must be a list of {FORM}: got {got}.")
    found = Spans(sorted(_span(one, place) for one in value))
    for span in found:
        if not 0 <= span.start < span.end <= len(text):
            raise UserError(
                f"{place}: a span must lie inside its text of {len(text):,} characters, with its "
                f"end after its start: got start {span.start} and end {span.end} ({span.label!r})."
            )
    for one, other in pairwise(found):
        if other.start < one.end:
            raise UserError(
                f"{place}: spans must not overlap: got {one.start} to {one.end} ({one.label!r}) "
                f"and {other.start} to {other.end} ({other.label!r}). Keep one of them."
            )
    return found


def _span(value: Any, place: str) -> Span:
    if isinstance(value, dict):
        missing = [name for name in Span._fields if name not in value]
        if missing:
            raise UserError(
                f"{place}: a span must have start, end and label, as in {FORM}: got no "
                f"{missing[0]}."
            )
        value = [value[name] for name in Span._fields]
    if not isinstance(value, list) or len(value) != 3:
        raise UserError(f"{place}: a span must be {FORM}: got {shown(value)}.")
    start, end, label = value
    for name, number in (("start", start), ("end", end)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise UserError(
                f"{place}: the {name} of a span must be a whole number of characters: got "
                f"{shown(number)}."
            )
    return Span(start, end, _label(label, place))


def _label(label: Any, place: str) -> str:
    if not isinstance(label, str) or not label.strip() or len(label) > MAX_LABEL:
        raise UserError(
            f"{place}: the label of a span must be text of 1 to {MAX_LABEL} characters: got "
            f"{shown(label)}."
        )
    return label


def from_words(words: Any, labels: Any, place: str) -> tuple[str, Spans]:
    """The words with a space between them, and the spans that their labels form."""
    for name, value in (("words", words), ("labels", labels)):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise UserError(
                f"{place}: {name} must be a list of text: got {shown(value)}. Write labels by "
                "name, as in B-person."
            )
    if len(words) != len(labels):
        raise UserError(
            f"{place}: there must be one label for each word: got {len(words)} words and "
            f"{len(labels)} labels."
        )
    for word in words:
        if not word.strip():
            raise UserError(f"{place}: a word must not be empty: got {word!r}.")
    starts, at = [], 0
    for word in words:
        starts.append(at)
        at += len(word) + 1
    spans = Spans(
        Span(starts[one.start], starts[one.end - 1] + len(words[one.end - 1]), one.type)
        for one in entities(labels)
    )
    for span in spans:
        _label(span.label, place)
    return " ".join(words), spans


def redacted(text: str, spans: Iterable[Span]) -> str:
    """The text with `[label]` in the place of each span."""
    parts, at = [], 0
    for span in sorted(spans):
        parts += [text[at : span.start], f"[{span.label}]"]
        at = span.end
    return "".join((*parts, text[at:]))


def joined(pieces: Sequence[tuple[str, Spans]], between: str = "\n") -> tuple[str, Spans]:
    """Several texts with their spans as one."""
    texts, spans, at = [], Spans(), 0
    for text, some in pieces:
        texts.append(text)
        spans.extend(Span(at + one.start, at + one.end, one.label) for one in some)
        at += len(text) + len(between)
    return between.join(texts), spans
