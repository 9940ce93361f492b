"""The text of a conversion: token ids, one part to train on and one that is held out.

The last tenth of each file is held out, and at least one row of it, whether or not the model is
trained. Held-out text is never trained on: agreement with the original is measured there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifact import hashed
from ..errors import UserError, user_input
from ..evidence.analysis.texts import lines_of
from ..models.text_input import Frame

if TYPE_CHECKING:
    from collections.abc import Sequence

HELD_OUT = 0.1  # the share of each file
LINES = 1000  # lines that are tokenized at a time
SHORTEST = 16  # tokens: a shorter rest of a file is not trained on


@dataclass(frozen=True)
class Text:
    """Token ids of a text without special tokens, an array for each file.

    length: the tokens of a held-out row, special tokens included.
    """

    train: list[np.ndarray]
    held_out: list[np.ndarray]
    frame: Frame
    length: int

    def rows(self, length: int) -> list[np.ndarray]:
        """The training part in rows of `length` tokens; rests are rows too if they are short rows.

        Rests of less than SHORTEST tokens, and of rows longer than `self.length`, are left out.
        """
        least = SHORTEST if length <= self.length else length - self.frame.size
        return _rows_of(self.train, self.frame, length, least)

    def held_out_rows(self, length: int | None = None) -> list[np.ndarray]:
        """The held-out part in whole rows."""
        length = length or self.length
        return _rows_of(self.held_out, self.frame, length, length - self.frame.size)

    @property
    def digest(self) -> dict[str, str]:
        """By content: the same text has the same digest wherever it lies."""
        return {"train": _digest(self.train), "held_out": _digest(self.held_out)}


def read_text(
    sources: Sequence[str],
    tokenizer: Any,
    *,
    length: int,
    longest: int | None = None,
    least: int = 1,
) -> Text:
    """The text of files, for rows of `length` tokens, and for training on rows of up to `longest`.

    A text without a row to hold out, or without one of `longest` tokens to train on, is refused.
    Without `longest` nothing is trained: a text too short to hold out `least` rows of it is held
    out as a whole.
    """
    frame = Frame.of(tokenizer)
    inside = length - frame.size
    if inside < 1:
        raise UserError(
            f"rows of {length} tokens leave no room for text beside {frame.size} special tokens. "
            "Use a larger --max-length."
        )
    train: list[np.ndarray] = []
    held_out: list[np.ndarray] = []
    total = 0
    for source in sources:
        ids = _tokens(source, tokenizer)
        total += len(ids)
        tail = max(inside, int(HELD_OUT * len(ids)))
        cut = len(ids) - tail if len(ids) >= 2 * tail else len(ids)
        train.append(ids[:cut])
        held_out.append(ids[cut:])
    found = Text(train, held_out, frame, length)
    if longest is None and len(found.held_out_rows()) < least:
        whole = [np.concatenate(both) for both in zip(train, held_out, strict=True)]
        found = Text([ids[:0] for ids in whole], whole, frame, length)
    if longest is None and not found.held_out_rows():
        raise UserError(
            f"the text has {total:,} tokens and no file with a row of {length:,}. Give longer "
            "files with --text."
        )
    if longest is not None and not (found.held_out_rows() and found.rows(longest)):
        raise UserError(
            f"the text has {total:,} tokens: too few for a row of {longest:,} tokens to train on "
            f"and one of {length:,} to hold out of the same file. Give longer files with --text, "
            "or a smaller --max-length."
        )
    return found


def _tokens(source: str, tokenizer: Any) -> np.ndarray:
    parts: list[np.ndarray] = []
    with user_input(f"cannot read the text {source}"):
        lines = lines_of(source)
        while some := list(itertools.islice(lines, LINES)):
            found = tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]
            parts.append(np.fromiter(itertools.chain.from_iterable(found), dtype=np.int64))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _rows_of(
    documents: Sequence[np.ndarray], frame: Frame, length: int, least: int
) -> list[np.ndarray]:
    inside = length - frame.size
    return [
        frame.row(ids[start : start + inside])
        for ids in documents
        for start in range(0, len(ids), inside)
        if len(ids) - start >= min(least, inside)
    ]


def _digest(documents: Sequence[np.ndarray]) -> str:
    found = hashed()
    for ids in documents:
        found.update(f"{len(ids)} ".encode())
        found.update(ids.astype("<i8").tobytes())
    return str(found.hexdigest())
