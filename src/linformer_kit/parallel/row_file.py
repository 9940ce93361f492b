"""Rows in a temporary file: what is too much to stay in memory between two passes.

Legend: N rows, M model size, L rows of one call.
"""

from __future__ import annotations

import shutil
from typing import IO, TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pathlib import Path


class RowFile:
    """Rows (N, M) in a file, read and written in parts by ordinary calls, not by a memory map:
    pages of a map count as memory of the process.
    """

    def __init__(self, path: Path, length: int, dim: int, like: Tensor) -> None:
        self.path, self.length, self.dim = path, length, dim
        self.like = like
        self.row = dim * like.element_size()
        self.file: IO[bytes] | None = None

    def __enter__(self) -> RowFile:
        self.file = self.path.open("w+b", buffering=0)
        return self

    def __exit__(self, *error: object) -> None:
        assert self.file is not None
        self.file.close()

    def write(self, first: int, rows: Tensor) -> None:
        """rows (1, S, M) at positions first ..."""
        assert self.file is not None
        self.file.seek(first * self.row)
        data = _bytes(rows[0].cpu().contiguous())
        while data:
            data = data[self.file.write(data) :]

    def read(self, first: int, last: int) -> Tensor:
        """(1, L, M)"""
        assert self.file is not None
        rows = torch.empty(last - first, self.dim, dtype=self.like.dtype)
        data = _bytes(rows)
        self.file.seek(first * self.row)
        while data:
            data = data[cast("Any", self.file).readinto(data) :]
        return rows[None].to(self.like.device)


def _bytes(rows: Tensor) -> memoryview:
    """The memory of contiguous rows on a CPU."""
    return memoryview(cast("Any", rows.view(torch.uint8).numpy())).cast("B")


def check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(
            f"the rows of this input need {needed / 1e9:.1f} GB of temporary files: "
            f"{folder} has {free / 1e9:.1f} GB free. Pass scratch=, a folder on a larger "
            "disk."
        )
