"""What stands in the files, as records: text (documents), CSV and TSV, JSON lines, parquet."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, get_args

from ..config.schema import Documents, Format
from ..errors import UserError
from . import files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .files import Limits

Record = dict[str, Any]
BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}


def read(
    path: Path,
    columns: Sequence[str],
    *,
    format: Format,  # noqa: A002  (the name of the key)
    documents: Documents,
    limits: Limits,
) -> Iterator[Record]:
    """The records of one file, each with `columns`. A text file has one column, `text`."""
    assert documents in get_args(Documents)
    kind = BY_SUFFIX.get(files.kind_of(path), "text") if format == "auto" else format
    if kind == "text":
        if list(columns) != ["text"]:
            raise UserError(
                f"{path} is plain text and has no columns: {_names(columns)} must come from CSV, "
                "TSV, JSON lines or parquet. Name the format with data.format."
            )
        return ({"text": text} for text in _documents(path, documents, limits))
    if kind == "parquet":
        return _parquet(path, columns, limits)
    if kind == "jsonl":
        return _json_lines(path, columns, limits)
    return _table(path, columns, "," if kind == "csv" else "\t", limits)


def _documents(path: Path, documents: Documents, limits: Limits) -> Iterator[str]:
    if documents == "file":
        yield files.whole(path, limits)
        return
    if documents == "line":
        yield from (line.rstrip("\r\n") for line in files.lines(path, limits))
        return
    gathered: list[str] = []
    size = 0
    for line in files.lines(path, limits):
        if line.strip():
            gathered.append(line)
            size += len(line)
            if size > limits.bytes:
                raise UserError(
                    f"{path} has a document without a blank line that is longer than "
                    f"data.max_document_mb = {limits.document_mb} MB. Use data.documents: line."
                )
        elif gathered:
            yield "".join(gathered).rstrip("\r\n")
            gathered, size = [], 0
    if gathered:
        yield "".join(gathered).rstrip("\r\n")


def _table(path: Path, columns: Sequence[str], comma: str, limits: Limits) -> Iterator[Record]:
    csv.field_size_limit(limits.bytes)
    # Tabs are never quoted in the files people have; quotes there are text.
    content = files.lines(path, limits)
    if comma == ",":
        rows = csv.reader(content, delimiter=comma)
    else:
        rows = csv.reader(content, delimiter=comma, quoting=csv.QUOTE_NONE)
    try:
        header = next(rows, None)
        if header is None:
            return
        places = [_place(path, header, column) for column in columns]
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise UserError(
                    f"line {rows.line_num} of {path} has {len(row)} fields where the header has "
                    f"{len(header)}."
                )
            yield {column: row[place] for column, place in zip(columns, places, strict=True)}
    except csv.Error as error:
        raise UserError(f"line {rows.line_num} of {path}: {error}.") from error


def _json_lines(path: Path, columns: Sequence[str], limits: Limits) -> Iterator[Record]:
    for number, line in enumerate(files.lines(path, limits), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"line {number} of {path} is not JSON: {error}.") from error
        if not isinstance(row, dict):
            raise UserError(f"line {number} of {path} is not a JSON object.")
        for column in columns:
            _place(f"line {number} of {path}", list(row), column)
        yield {column: row[column] for column in columns}


def _parquet(path: Path, columns: Sequence[str], limits: Limits) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"cannot read {path} as parquet: {str(error).splitlines()[0]}") from error
    for column in columns:
        _place(path, file.schema_arrow.names, column)
    size = path.stat().st_size
    done = 0
    with file:
        rows = max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(batch_size=256, columns=list(columns)):
            yield from batch.to_pylist()
            step = size * batch.num_rows // rows
            limits.tell(step)
            done += step
    limits.tell(size - done)


def _place(where: object, header: Sequence[str], column: str) -> int:
    try:
        return list(header).index(column)
    except ValueError:
        raise UserError(
            f"{where} has no column {column!r}: it has {_names(header)}. "
            "Name the columns in data.text, data.label, data.source, data.target or data.features."
        ) from None


def _names(names: Sequence[str]) -> str:
    shown = [repr(name if len(name) < 40 else name[:37] + "...") for name in names[:12]]
    return ", ".join(shown) + (", ..." if len(names) > 12 else "")
