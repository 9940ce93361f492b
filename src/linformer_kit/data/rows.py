"""Prepared rows as a torch data set: numpy views of the memory-mapped columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datasets import Dataset

    from .order import Draw

Example = dict[str, Any]


class Rows(torch.utils.data.Dataset[Example]):
    """Rows by number, or by (number, draw): the draw is what masking takes its randomness from.

    `limit` takes so many rows, evenly from all: a file may be sorted, by label for example. `only`
    are the numbers of some of the rows. Both keep the draws that the rows have among all.
    """

    def __init__(
        self, rows: Dataset, limit: int | None = None, *, only: np.ndarray | None = None
    ) -> None:
        self._rows = rows.with_format("arrow")
        count = len(rows) if limit is None else min(limit, len(rows))
        self._numbers = np.arange(count) * len(rows) // max(1, count) if only is None else only

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, key: int | Draw) -> Example:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: Sequence[int | Draw]) -> list[Example]:
        draws = [
            key if isinstance(key, tuple) else (key, -1 - int(self._numbers[key])) for key in keys
        ]
        table = self._rows[[int(self._numbers[row]) for row, _ in draws]]
        examples: list[Example] = [{"draw": draw} for _, draw in draws]
        for name in table.column_names:
            column = table.column(name)
            for example, value in zip(examples, column, strict=True):
                values = getattr(value, "values", None)  # of a list
                if values is None:
                    example[name] = value.as_py()
                else:
                    example[name] = values.to_numpy(zero_copy_only=False)
        return examples

    def column(self, name: str) -> np.ndarray:
        """A column of numbers."""
        return np.asarray(self._rows.data.column(name).to_numpy())[self._numbers]

    def has(self, name: str) -> bool:
        return name in self._rows.column_names

    def strings(self, name: str) -> list[str]:
        """A column of text."""
        values = self._rows.data.column(name).to_pylist()
        return [values[number] for number in self._numbers]
