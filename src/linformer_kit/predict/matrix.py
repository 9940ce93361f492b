"""Vectors as a matrix: OUT.npy, with a line for each of its rows in OUT.npy.rows.jsonl.

While a job runs, both are in the folder OUT.npy.partial; a position is a number of rows.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..artifact import STAGING, publish, sync
from .writers import fewer_answers, writing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .writers import Answered

VECTORS, ROWS = "vectors.f32", "rows.jsonl"


def rows_file(out: Path) -> Path:
    """What says which row of a matrix belongs to which input."""
    return out.with_name(f"{out.name}.rows.jsonl")


class MatrixWriter:
    """A row of float32 for each row of the input; NaN where there is no answer."""

    every_row: ClassVar[bool] = True

    def __init__(self, partial: Path, size: int) -> None:
        self.partial = partial
        self.size = size
        self._count = 0
        self._vectors: Any = None
        self._rows: Any = None

    def open_at(self, position: int) -> None:
        self._count = position
        with writing(self.partial):
            self.partial.mkdir(exist_ok=True)
            self._vectors, self._rows = (self._open(name) for name in (VECTORS, ROWS))
            size = 4 * self.size * position
            lines = [self._rows.readline().endswith(b"\n") for _ in range(position)]
            if self._vectors.seek(0, os.SEEK_END) < size or not all(lines):
                raise fewer_answers(self.partial)
            self._vectors.truncate(size)
            self._vectors.seek(0, os.SEEK_END)
            self._rows.seek(self._rows.tell())
            self._rows.truncate()

    def _open(self, name: str) -> Any:
        path = self.partial / name
        return path.open("r+b" if path.exists() else "w+b")

    def write(self, rows: Sequence[Answered]) -> None:
        with writing(self.partial):
            for row, result in rows:
                answers = result.pop("predictions", None)
                vector = answers[0]["vector"] if answers else [np.nan] * self.size
                self._vectors.write(np.asarray(vector, dtype="<f4").tobytes())
                about = {"row": self._count, "input": row.place, **result}
                self._rows.write(f"{json.dumps(about, ensure_ascii=False)}\n".encode())
                self._count += 1

    def commit(self) -> int:
        with writing(self.partial):
            for file in (self._vectors, self._rows):
                file.flush()
            sync(self.partial)
        return self._count

    def finish(self, out: Path) -> None:
        """Both files in their places: first the lines, then the matrix, whose file is the end."""
        with writing(out):
            self._rows.close()
            copy = self.partial / f"{STAGING}-rows"
            shutil.copyfile(self.partial / ROWS, copy)
            publish(copy, rows_file(out))
            whole = self.partial / f"{STAGING}-matrix"
            with whole.open("wb") as file:
                header = {"descr": "<f4", "fortran_order": False, "shape": (self._count, self.size)}
                np.lib.format.write_array_header_1_0(file, header)
                self._vectors.seek(0)
                shutil.copyfileobj(self._vectors, file)
            self._vectors.close()
            publish(whole, out)
            for name in (VECTORS, ROWS):
                (self.partial / name).unlink()
            self.partial.rmdir()
