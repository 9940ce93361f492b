"""Labels of words and spans of text: IOB2 and its relatives, read by the rules of seqeval.

A label is O or a prefix and a type, as in B-person. Prefixes are B (first word of a span), I
(inside), E or L (last word), S or U (a span of one word). By seqeval's default mode, which is that
of the CoNLL script, a span also begins where the type changes or where I or E follows O: no label
sequence is an error. A label without a prefix is read as I.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTSIDE = "O"
_PREFIXED = re.compile(r"([BIELSU])-(.+)", re.DOTALL)
_SAME = {"L": "E", "U": "S"}  # of BILOU


class Entity(NamedTuple):
    """Places `start` to `end` (not included) of a label sequence that form one span."""

    type: str
    start: int
    end: int


def entities(labels: Sequence[str]) -> list[Entity]:
    """The spans of a sequence of labels, by seqeval's default mode."""
    found: list[Entity] = []
    begun, last, kind = 0, OUTSIDE, ""  # where the open span began; prefix and type before
    for place, label in enumerate((*labels, OUTSIDE)):
        prefix, type_ = _split(label)
        follows = last != OUTSIDE  # a span may be open
        new = prefix in "BS" or last in "ESO" or type_ != kind
        if follows and (prefix == OUTSIDE or new):
            found.append(Entity(kind, begun, place))
        if prefix != OUTSIDE and new:
            begun = place
        last, kind = prefix, type_
    return found


def _split(label: str) -> tuple[str, str]:
    if label == OUTSIDE:
        return OUTSIDE, ""
    match = _PREFIXED.fullmatch(label)
    if match is None:
        return "I", label
    return _SAME.get(match[1], match[1]), match[2]


def label_names(types: Sequence[str]) -> list[str]:
    """The IOB2 labels of these types: O, then B and I of each. A label's number is its place."""
    return [OUTSIDE, *(f"{prefix}-{type_}" for type_ in types for prefix in "BI")]


def types_of(labels: Sequence[str]) -> list[str]:
    """The types that `label_names` was given."""
    return [label.removeprefix("B-") for label in labels[1::2]]


def begin(type_: np.ndarray | int) -> np.ndarray | int:
    """The number of a type's label B; that of I is one more."""
    return 1 + 2 * type_


def spans_of(numbers: np.ndarray) -> np.ndarray:
    """Spans of label numbers (N) as rows of (type, start, end), by the rule of `entities`."""
    inside = numbers > 0
    types = np.where(inside, (numbers - 1) // 2, -1)
    before = np.concatenate([[-1], types[:-1]])
    starts = np.flatnonzero(inside & ((numbers % 2 == 1) | (types != before)))
    # A span ends where the next one begins, or at the first O.
    ends_at = np.ones(len(numbers) + 1, dtype=bool)
    ends_at[:-1] = ~inside
    ends_at[starts] = True
    ends = np.flatnonzero(ends_at)
    stop = ends[np.searchsorted(ends, starts, side="right")]
    return np.stack([types[starts], starts, stop], axis=1)
