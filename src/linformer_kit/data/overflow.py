"""Texts that are longer than a model reads: cut by a policy, and answers to the pieces merged.

`Overflow` says which tokens of a text go to the model, `Reading` how many of them that were. Rows
of training data and answers of `predict` are made by the same cuts.

Legend: P pieces, N tokens of a piece, L tokens of a text, C values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import UserError
from .counts import share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..config.on_overflow import OnOverflow


@dataclass(frozen=True)
class Reading:
    """How much of a text was read. The tokens of its frame (<s>, </s>) count as its own."""

    policy: OnOverflow
    tokens_read: int
    tokens_total: int

    @property
    def unread(self) -> int:
        return self.tokens_total - self.tokens_read

    def line(self) -> str | None:
        """One sentence about what was not read, or None."""
        if not self.unread:
            return None
        return (
            f"{share(self.unread, self.tokens_total)} of the tokens ({self.unread:,} of "
            f"{self.tokens_total:,}) were not read (on_overflow: {self.policy})."
        )


@dataclass(frozen=True)
class Overflow:
    """What is read of a text of any length by a model that reads `max_length` tokens.

    frame: how many of these belong to the frame of every piece.
    overlap: the share of a piece that the next one repeats, at least (chunk).
    keep: which end of a text stays (truncate).
    """

    policy: OnOverflow
    max_length: int | None  # None: there is no limit
    frame: int = 0
    overlap: float = 0.0
    keep: Literal["start", "end"] = "start"
    limit: str = "data.max_length"  # what sets it, for errors
    instead: str = "truncate, chunk or extend"  # what may be used in place of error

    def pieces(self, length: int) -> list[range]:
        """The places of the pieces that are read, of a text of `length` tokens without frame."""
        if self.fits(length):
            return [range(length)]
        assert self.max_length is not None
        room = self.max_length - self.frame
        if self.policy == "error":
            raise self._too_long(f"{length + self.frame:,}")
        if self.policy == "extend":
            return [range(length)]
        if room < 1:
            raise UserError(
                f"data.max_length must leave room for a token beside the {self.frame} of the frame "
                f"(on_overflow: {self.policy}): got {self.max_length}."
            )
        if self.policy == "truncate":
            return [range(length - room, length) if self.keep == "end" else range(room)]
        return overlapping(length, room, int(room * self.overlap))

    def fits(self, length: int) -> bool:
        return self.max_length is None or length + self.frame <= self.max_length

    def check_part(self, length: int) -> None:
        """Raise what `pieces` would, for a text whose first `length` tokens are known."""
        if self.policy == "error" and not self.fits(length):
            raise self._too_long(f"at least {length + self.frame:,}")

    def _too_long(self, got: str) -> UserError:
        return UserError(
            f"a text must have at most {self.limit} = {self.max_length:,} tokens: got {got}. "
            f"Shorten it, or use on_overflow: {self.instead}."
        )

    def reading(self, length: int, pieces: Sequence[range]) -> Reading:
        """How much of the text these pieces are."""
        total = length + self.frame
        return Reading(self.policy, covered(pieces) + self.frame, total)


def overlapping(length: int, room: int, overlap: int) -> list[range]:
    """Pieces of `room` tokens, as few as repeat at least `overlap`, at even distances.

    All have the full size, so that no answer comes from a short rest.
    """
    if length <= room:
        return [range(length)]
    step = room - overlap
    count = 1 + -(-(length - room) // step)
    last = length - room
    return [range(at, at + room) for at in (i * last // (count - 1) for i in range(count))]


def covered(pieces: Sequence[range]) -> int:
    """How many tokens are in any of the pieces, which are in order."""
    tokens = end = 0
    for piece in pieces:
        tokens += max(0, piece.stop - max(piece.start, end))
        end = max(end, piece.stop)
    return tokens


def most_central(pieces: Sequence[range], places: np.ndarray) -> np.ndarray:
    """For each place of a text, the piece in which it has the most context on its nearer side.

    -1 for a place that is in no piece. What is decided for single tokens (a masked word, a label)
    is taken from there.
    """
    best = np.full(len(places), -1)
    context = np.full(len(places), -1)
    for number, piece in enumerate(pieces):
        here = np.minimum(places - piece.start, piece.stop - 1 - places)
        better = here > context
        best[better], context[better] = number, here[better]
    return best


def mean_of_pieces(values: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """The mean of values (P, C) weighted by the tokens of the pieces: (C).

    Probabilities of the pieces become those of the text, and vectors one vector.
    """
    weights = np.asarray(tokens, dtype=np.float64)
    return (values * (weights / weights.sum())[:, None]).sum(0)


def at_boundaries(length: int, room: int, *boundaries: np.ndarray) -> list[range]:
    """Pieces of at most `room` tokens without overlap, which end where something ends.

    boundaries: (L) each, whether a token begins a sentence, a word: the first of them with a place
    in the second half of a piece decides where it ends. Without any, the piece is full.
    """
    pieces, at = [], 0
    while at < length:
        end = min(at + room, length)
        if end < length:
            half = at + 1 + room // 2
            for starts in boundaries:
                found = np.flatnonzero(starts[half : end + 1])
                if len(found):
                    end = half + int(found[-1])
                    break
        pieces.append(range(at, end))
        at = end
    return pieces
