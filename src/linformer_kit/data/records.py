"""What stands in the files, as records: text (documents), CSV and TSV, JSON lines, parquet.

Each record comes with its place ("line 3 of a.csv"), which every error about it names.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any, get_args

from ..config.schema import Documents, Format
from ..errors import UserError, user_input
from ..measure import quantities
from . import conll, files
from .decompress import Expansion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .files import Limits

Record = dict[str, Any]
TEXTS = ("text", "source", "target", "positive", "negative")  # what a record may hold to read
Placed = tuple[str, Record]
BY_SUFFIX: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".conll": "conll",
    ".iob": "conll",
    ".iob2": "conll",
    ".bio": "conll",
}
COLUMN_KEYS = (
    "Name the columns in data.text, data.label, data.source, data.target, data.features, "
    "data.spans, or data.words and data.tags."
)


def kind_of(path: Path, format: Format) -> Format:  # noqa: A002  (the name of the key)
    """The format of a file: as it is given, or by the file's suffix."""
    return BY_SUFFIX.get(files.kind_of(path), "text") if format == "auto" else format


def read(
    path: Path,
    columns: Sequence[str],
    *,
    format: Format,  # noqa: A002  (the name of the key)
    documents: Documents,
    limits: Limits,
) -> Iterator[Placed]:
    """The records of one file with their places, each with `columns`. Plain text has one: text."""
    assert documents in get_args(Documents)
    kind = kind_of(path, format)
    if kind == "conll":
        return conll.read(path, documents, limits)
    if kind == "text":
        if list(columns) != ["text"]:
            raise UserError(
                f"{path} is plain text and has no columns: {_names(columns)} must come from CSV, "
                "TSV, JSON lines or parquet. Name the format with data.format."
            )
        return _documents(path, documents, limits)
    if kind == "parquet":
        return _parquet(path, columns, limits)
    if kind == "jsonl":
        return _json_lines(path, columns, limits)
    return _table(path, columns, "," if kind == "csv" else "\t", limits)


def _documents(path: Path, documents: Documents, limits: Limits) -> Iterator[Placed]:
    if documents == "file":
        yield str(path), {"text": files.whole(path, limits)}
        return
    lines = enumerate(files.lines(path, limits), start=1)
    if documents == "line":
        for number, line in lines:
            yield f"line {number} of {path}", {"text": line.rstrip("\r\n")}
        return
    gathered, start = bytearray(), 1  # a list of lines takes far more memory than their text
    for number, line in lines:
        if line.strip():
            start = start if gathered else number
            gathered += line.encode("utf-8")
            if len(gathered) > limits.bytes:
                raise UserError(
                    f"the document that begins at line {start} of {path} has no blank line and is "
                    f"longer than data.max_document_mb = {limits.document_mb} MB. "
                    "Use data.documents: line, or raise that limit."
                )
        elif gathered:
            yield f"line {start} of {path}", {"text": gathered.decode("utf-8").rstrip("\r\n")}
            gathered.clear()
    if gathered:
        yield f"line {start} of {path}", {"text": gathered.decode("utf-8").rstrip("\r\n")}


def _table(path: Path, columns: Sequence[str], comma: str, limits: Limits) -> Iterator[Placed]:
    csv.field_size_limit(max(csv.field_size_limit(), limits.bytes))
    start, size = 1, 0  # of the record that is being read; it may have many lines

    def content() -> Iterator[str]:
        nonlocal size
        for line in files.lines(path, limits):
            size += len(line)
            if size > limits.bytes:
                raise UserError(
                    f"the record that begins at line {start} of {path} is longer than "
                    f"data.max_document_mb = {limits.document_mb} MB. Close its quotes, or raise "
                    "that limit."
                )
            yield line

    # Tabs are never quoted in the files people have; quotes there are text.
    if comma == ",":
        rows = csv.reader(content(), strict=True)
    else:
        rows = csv.reader(content(), delimiter=comma, quoting=csv.QUOTE_NONE, strict=True)
    header: list[str] | None = None
    places: list[int] = []
    while True:
        start, size = rows.line_num + 1, 0
        try:
            row = next(rows, None)
        except Exception:
            kind = "CSV" if comma == "," else "TSV"
            remedy = "Close every quote, and double a quote inside a quoted field."
            with user_input(f"line {start} of {path} is not valid {kind}", remedy=remedy):
                raise
        if row is None:
            return
        if header is None:
            header = row
            places = [_place(path, header, column) for column in columns]
        elif row:
            if len(row) != len(header):
                raise UserError(
                    f"line {start} of {path} has {quantities.count(len(row), 'field')} "
                    "where the header has "
                    f"{len(header)}."
                )
            record = {column: row[place] for column, place in zip(columns, places, strict=True)}
            yield f"line {start} of {path}", record


def _json_lines(path: Path, columns: Sequence[str], limits: Limits) -> Iterator[Placed]:
    remedy = "Write one JSON object a line."
    for number, line in enumerate(files.lines(path, limits), start=1):
        if not line.strip():
            continue
        place = f"line {number} of {path}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{place} is not valid JSON: {error.msg} (column {error.colno}). {remedy}"
            ) from error
        except Exception:  # nested too deeply, a number of too many digits
            with user_input(f"cannot read {place} as JSON"):
                raise
        if not isinstance(row, dict):
            raise UserError(f"{place} is not a JSON object. {remedy}")
        for column in columns:
            if column not in row:
                _place(place, list(row), column)
        yield place, {column: row[column] for column in columns}


def _parquet(path: Path, columns: Sequence[str], limits: Limits) -> Iterator[Placed]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix.lower() in files.PACKED:
        raise UserError(f"{path} must not be compressed as a whole. Decompress it first.")
    size = files.size_of(path)
    expansion = Expansion(path, size)
    damaged = user_input(
        f"cannot read {path} as parquet",
        remedy="It may be truncated, damaged or of another format: copy or write it again.",
    )
    # Errors of whoever asks for the records are not raised in here, only those of reading.
    with files.open_regular(path) as raw, damaged:
        schema = pq.read_schema(raw)
        for column in columns:
            _place(path, schema.names, column)
        texts = [name for name in columns if pa.types.is_string(schema.field(name).type)]
        raw.seek(0)
        # Repeated strings stay dictionaries, and pages are read one by one: otherwise a small file
        # fills the memory.
        file = pq.ParquetFile(raw, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False)
        rows, number, done = max(file.metadata.num_rows, 1), 0, 0
        for batch in file.iter_batches(batch_size=64, columns=list(columns)):
            arrays = {column: batch.column(column) for column in columns}
            expansion.add(
                sum(a.nbytes for a in arrays.values() if not pa.types.is_dictionary(a.type))
            )
            for at in range(batch.num_rows):
                number += 1
                place = f"row {number} of {path}"
                with user_input(f"cannot read {place}"):
                    record = {column: array[at].as_py() for column, array in arrays.items()}
                for value in record.values():
                    if isinstance(value, str):
                        expansion.add(len(value))
                        if len(value) > limits.bytes:
                            raise UserError(
                                f"{place} is longer than data.max_document_mb = "
                                f"{limits.document_mb} MB. Cut it, or raise that limit."
                            )
                yield place, record
            step = size * batch.num_rows // rows
            limits.tell(step)
            done += step
        limits.tell(size - done)


def _place(where: object, header: Sequence[str], column: str) -> int:
    found = [place for place, name in enumerate(header) if name == column]
    if not found:
        raise UserError(f"{where} has no column {column!r}: it has {_names(header)}. {COLUMN_KEYS}")
    if len(found) > 1:
        raise UserError(f"{where} has {len(found)} columns {column!r}. Rename all but one.")
    return found[0]


def _names(names: Sequence[str]) -> str:
    shown = [repr(name if len(name) < 40 else name[:37] + "...") for name in names[:12]]
    return ", ".join(shown) + (", ..." if len(names) > 12 else "")
