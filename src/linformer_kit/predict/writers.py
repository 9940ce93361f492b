"""Answers beside the columns of their rows, written so that a killed job loses and doubles nothing.

While a job runs, its answers are in OUT.partial: a file that grows, or for parquet a folder of
parts. `commit` makes what was written last and returns the position; `open_at` goes back to one.
"""

from __future__ import annotations

import csv
import io
import json
import os
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..artifact import MAKE_ROOM, STAGING, publish, sync
from ..errors import UserError, user_input

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .inputs import Input, Row

# The columns that answers may have, and what they hold.
TEXT_RESULTS = ("prediction", "predictions", "prediction_error")
ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
Answered = tuple["Row", dict[str, Any]]


class Writer(Protocol):
    """What a job asks of a format.

    every_row: whether rows that cannot be read (`Row.raw` is None) are written as well.
    """

    every_row: ClassVar[bool]

    def open_at(self, position: int) -> None: ...
    def write(self, rows: Sequence[Answered]) -> None: ...
    def commit(self) -> int: ...
    def finish(self, out: Path) -> None: ...


class LineWriter:
    """CSV, TSV and JSON lines: a position is a number of bytes."""

    every_row: ClassVar[bool] = False

    def __init__(self, partial: Path, kind: str, source: Input, results: Sequence[str]) -> None:
        self.partial = partial
        self.kind = kind
        self.source = source
        self.results = results
        self._file: Any = None

    def open_at(self, position: int) -> None:
        with writing(self.partial):
            self._file = self.partial.open("r+b" if self.partial.exists() else "w+b")
            if self._file.seek(0, os.SEEK_END) < position:
                raise fewer_answers(self.partial)
            self._file.truncate(position)
            self._file.seek(position)
            if position == 0 and self.kind != "jsonl":
                self._file.write(self._line([*self.source.header, *self.results]))

    def write(self, rows: Sequence[Answered]) -> None:
        with writing(self.partial):
            for row, result in rows:
                self._file.write(self._encoded(row, result))

    def commit(self) -> int:
        with writing(self.partial):
            self._file.flush()
            sync(self.partial)
            return int(self._file.tell())

    def finish(self, out: Path) -> None:
        with writing(out):
            self._file.close()
            publish(self.partial, out)

    def _encoded(self, row: Row, result: dict[str, Any]) -> bytes:
        if self.kind != "jsonl":
            return self._line([*row.raw, *(_flat(result.get(name)) for name in self.results)])
        if isinstance(row.raw, str):  # a JSON object, whose own text is kept as it is
            more = json.dumps(result, ensure_ascii=False)
            own = row.raw[:-1].rstrip()
            comma = "" if own == "{" else ", "
            return f"{own}{comma}{more[1:]}\n".encode("utf-8", "surrogatepass")
        values = dict(zip(self.source.header, row.raw, strict=True)) | result
        return f"{json.dumps(values, ensure_ascii=False)}\n".encode()

    def _line(self, fields: Sequence[str]) -> bytes:
        if self.kind == "tsv":
            own = len(self.source.header)
            shown = [*fields[:own], *(text.translate(ESCAPES) for text in fields[own:])]
            if self.source.kind != "tsv":  # its fields may hold tabs
                shown = [text.translate(ESCAPES) for text in fields]
            return ("\t".join(shown) + self.source.line_end).encode()
        text = io.StringIO()
        # Before Python 3.13 only the characters of the line end are quoted, so a lone \r is not.
        csv.writer(text, lineterminator="\r\n").writerow(fields)
        return (text.getvalue().removesuffix("\r\n") + self.source.line_end).encode()


class ParquetWriter:
    """Parquet: a position is a number of parts, which become one file at the end."""

    every_row: ClassVar[bool] = False

    def __init__(self, partial: Path, source: Input, results: Sequence[str]) -> None:
        self.partial = partial
        self.source = source
        self.results = results
        self._count = 0
        self._waiting: list[Answered] = []

    def open_at(self, position: int) -> None:
        import pyarrow as pa

        own = self.source.schema or pa.schema([(name, pa.string()) for name in self.source.header])
        types = {"prediction_score": pa.float64()} | {
            name: pa.string() for name in TEXT_RESULTS if name in self.results
        }
        more = [pa.field(name, types.get(name, pa.int64())) for name in self.results]
        self.schema = pa.schema([*own, *more], metadata=own.metadata)
        self._count = position
        with writing(self.partial):
            self.partial.mkdir(exist_ok=True)
            if not all(self._part(number).is_file() for number in range(position)):
                raise fewer_answers(self.partial)
            for path in self._parts(after=position):
                path.unlink()

    def _part(self, number: int) -> Path:
        return self.partial / f"part-{number:08d}.parquet"

    def _parts(self, *, after: int = 0) -> list[Path]:
        found = [*self.partial.glob("part-*.parquet"), *self.partial.glob(f"{STAGING}-part-*")]
        kept = {self._part(number) for number in range(after)}
        return sorted(path for path in found if path not in kept)

    def write(self, rows: Sequence[Answered]) -> None:
        self._waiting += rows

    def commit(self) -> int:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return self._count
        if self.source.schema is not None:
            own = pa.Table.from_batches([row.raw for row, _ in self._waiting])
        else:
            names = self.source.header
            columns = zip(*(row.raw for row, _ in self._waiting), strict=True)
            own = pa.table(dict(zip(names, map(list, columns), strict=True)))
        for name in self.results:
            values = [result.get(name) for _, result in self._waiting]
            kind = self.schema.field(name).type
            if pa.types.is_string(kind):
                values = [None if value is None else _flat(value) for value in values]
            own = own.append_column(self.schema.field(name), pa.array(values, type=kind))
        staging = self.partial / f"{STAGING}-part-{self._count}"
        with writing(self.partial):
            pq.write_table(own.cast(self.schema), staging)
            publish(staging, self._part(self._count))
        self._count += 1
        self._waiting = []
        return self._count

    def finish(self, out: Path) -> None:
        import pyarrow.parquet as pq

        staging = self.partial / f"{STAGING}-part-whole"
        with writing(out):
            with pq.ParquetWriter(staging, self.schema) as whole:
                for number in range(self._count):
                    with pq.ParquetFile(self._part(number)) as part:
                        for batch in part.iter_batches():
                            whole.write_batch(batch)
            publish(staging, out)
            for path in self._parts():
                path.unlink()
            self.partial.rmdir()


def _flat(value: Any) -> str:
    """A value in a field of text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def fewer_answers(partial: Path) -> UserError:
    """Answers so far that were cut or changed: going on would fill the gap with zeros."""
    return UserError(
        f"{partial} holds fewer answers than were written to it: it is left alone. Remove it and "
        "the .predict.json beside it to start again."
    )


def writing(path: Path) -> Any:
    """Errors while a file is written, as errors of the user."""
    return user_input(f"cannot write {path}", remedy=MAKE_ROOM)
