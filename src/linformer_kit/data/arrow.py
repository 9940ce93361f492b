"""Rows on disk: an Arrow stream written a batch at a time, read back through a memory map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .store import writing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .examples import Row

ROWS = 256  # in one batch of the file, at most
VALUES = 1 << 22  # in one batch, about: long rows make small batches


def schema_of(row: Row, vocab_size: int) -> pa.Schema:
    """The smallest types that hold the columns of a row like this."""
    ids = pa.list_(pa.uint16() if vocab_size <= 2**16 else pa.uint32())
    types: dict[str, Any] = {
        "input_ids": ids,
        "labels": ids if isinstance(row.get("labels"), np.ndarray) else pa.int32(),
        "positive": ids,
        "negative": ids,
        "word_starts": pa.list_(pa.bool_()),
        "features": pa.list_(pa.float32()),
        "tags": pa.list_(pa.int32()),
        "missed": pa.list_(pa.int32()),
        "cut_span": pa.int32(),
        "core_start": pa.int32(),
        "core_end": pa.int32(),
        "length": pa.int32(),
        "width": pa.int32(),
        "document": pa.int64(),
        "reference": pa.string(),
    }
    return pa.schema([(name, types[name]) for name in row])


class RowFile:
    """A file of rows under way. Its types come from the first row; without rows there is no file.

    with RowFile(path, vocab_size) as file:
        file.add(rows)
    """

    def __init__(self, path: Path, vocab_size: int) -> None:
        self.path = path
        self._vocab_size = vocab_size
        self._rows: list[Row] = []
        self._values = 0
        self._sink: Any = None
        self._writer: Any = None

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                with writing(self.path.parent.parent):
                    if self._writer is not None:
                        self._writer.close()
        finally:
            if self._sink is not None:
                self._sink.close()

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._rows.append(row)
            self._values += sum(value.size for value in row.values() if hasattr(value, "size"))
            if len(self._rows) == ROWS or self._values > VALUES:
                self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        if self._writer is None:
            self._schema = schema_of(self._rows[0], self._vocab_size)
        columns = [_column(self._rows, column) for column in self._schema]
        with writing(self.path.parent.parent):
            if self._writer is None:
                self._sink = pa.OSFile(str(self.path), "wb")
                self._writer = pa.ipc.new_stream(self._sink, self._schema)
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._rows, self._values = [], 0


def _column(rows: list[Row], column: pa.Field) -> pa.Array:
    values = [row[column.name] for row in rows]
    if not pa.types.is_list(column.type):
        return pa.array(values, type=column.type)
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    flat = pa.array(np.concatenate(values)).cast(column.type.value_type)
    return pa.ListArray.from_arrays(pa.array(ends), flat)
