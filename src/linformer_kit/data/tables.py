"""Files as rows: CSV, TSV, JSON lines, parquet, plain text. Each row has its place, its values and
its problem.

A problem is a sentence about the row without its subject ("is not valid JSON: ..."). Training
raises it with the place (`read`); predict writes it beside the row and goes on. What is wrong with
the file as a whole (no such column, a damaged stream) is raised at once. Memory holds one row; of
parquet, a batch of 64.
"""

from __future__ import annotations

import csv
import json
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError, listed, reason_of, user_input
from . import conll, files
from .decompress import Expansion
from .files import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..config.schema import Documents, Format

Record = dict[str, Any]
Placed = tuple[str, Record]
TEXTS = ("text", "source", "target", "positive", "negative")  # what a record may hold to read
Line = tuple[int, bytes | None]
SeparatedRow = tuple[int, list[str] | None, str | None]
COLUMN_KEYS = (
    "Name the columns in data.text, data.label, data.source, data.target, data.features, "
    "data.spans, or data.words and data.tags."
)
TEXT = "text"  # the only column of plain text
ONE_OBJECT = "Write one JSON object a line."
BATCH = 64  # rows of parquet
REMEDIES = {
    "csv": "Close every quote, and double a quote inside a quoted field.",
    "tsv": "A field of TSV must hold no tab and no line break.",
}
RAGGED = {
    "csv": "Add or remove fields, and quote a field that holds a comma or a line break.",
    "tsv": f"Add or remove fields. {REMEDIES['tsv']}",
}


class TableRow(NamedTuple):
    """One row.

    place: "line 3", or "line 3 of a.csv". values: by column; empty where there is a problem.
    raw: the row as it is written again: fields, JSON text or a slice of Arrow; None for one that
    could not be read at all.
    """

    place: str
    values: Record
    raw: Any = None
    problem: str | None = None


@dataclass
class Table:
    """A file or standard input whose rows have these columns; the header is known after `open`.

    remedy: what to do about a column that is not there. reserved: columns that must not be there.
    of: the end of each row's place. whole_rows: parquet reads all columns, for `TableRow.raw`.
    """

    name: str
    kind: Format
    columns: Sequence[str]
    limits: Limits
    remedy: str
    reserved: Sequence[str] = ()
    of: str = ""
    whole_rows: bool = False
    header: list[str] = field(default_factory=list)
    line_end: str = "\n"
    schema: Any = None  # of parquet

    @property
    def shown(self) -> str:
        return files.shown_name(self.name)

    def open(self) -> Iterator[TableRow]:
        if self.kind == "parquet":
            return self._parquet()
        lines: Iterator[Line] = files.numbered_lines(self.name, self.limits)
        if self.kind == "text":
            self.header = [TEXT]
            return self._texts(lines)
        if self.kind == "jsonl":
            return self._json_lines(self._not_an_array(lines))
        return self._separated(lines)

    def check_keys(self) -> None:
        """Refuse JSON lines of which no object has the keys."""
        limits, first = Limits(self.limits.document_mb), None
        for row in self._json_lines(files.numbered_lines(self.name, limits)):
            if row.values:
                return
            first = first or row.raw
        if first is not None:
            raise UserError(
                f"no row of {self.shown} has the key {self.columns[0]!r}: the first has "
                f"{listed(json.loads(first), 12, form=repr) or 'none'}. {self.remedy}"
            )

    def _texts(self, lines: Iterator[Line]) -> Iterator[TableRow]:
        for number, line in lines:
            place = f"line {number}{self.of}"
            try:
                text = files.decode_line(number, line, self.limits).rstrip("\r\n")
            except UserError as error:
                yield TableRow(place, {}, None, str(error))
                continue
            yield TableRow(place, {TEXT: text}, [text])

    def _json_lines(self, lines: Iterator[Line]) -> Iterator[TableRow]:
        for number, line in lines:
            place = f"line {number}{self.of}"
            try:
                text = files.decode_line(number, line, self.limits)
                if not text.strip():
                    continue
                row = json.loads(text)
                if not isinstance(row, dict):
                    raise UserError(f"is not a JSON object, but {type(row).__name__}. {ONE_OBJECT}")
                if taken := [name for name in self.reserved if name in row]:
                    raise UserError(f"has a key {taken[0]!r} already. Rename it.")
            except UserError as error:
                yield TableRow(place, {}, None, str(error))
                continue
            except (ValueError, RecursionError) as error:
                # The parser's own "line 1" is not the line of the file.
                reason = reason_of(error)
                if isinstance(error, json.JSONDecodeError):
                    reason = f"{error.msg} at column {error.colno}"
                yield TableRow(place, {}, None, f"is not valid JSON: {reason}. {ONE_OBJECT}")
                continue
            raw, missing = text.strip(), [name for name in self.columns if name not in row]
            if missing:
                has = listed(row, 12, form=repr) or "none"
                problem = f"has no key {missing[0]!r}: it has {has}. {self.remedy}"
                yield TableRow(place, {}, raw, problem)
            else:
                yield TableRow(place, {name: row[name] for name in self.columns}, raw)

    def _not_an_array(self, lines: Iterator[Line]) -> Iterator[Line]:
        """The lines; those of one JSON array are refused before the first is used."""
        for number, line in lines:
            if line is not None and not line.strip():
                continue
            if line is not None and line.lstrip().startswith(b"["):
                raise UserError(
                    f"{self.shown} must hold one JSON object a line: got an array, for line "
                    f"{number} begins with [. Write each of its objects on a line of its own, for "
                    "example with jq -c '.[]'."
                )
            return chain([(number, line)], lines)
        return lines

    def _separated(self, lines: Iterator[Line]) -> Iterator[TableRow]:
        rows = _SeparatedRows(self.kind, lines, self.limits)
        line, header, problem = next(rows, (0, [], None))
        if header is None:
            raise UserError(f"line {line} of {self.shown} {problem}")
        self.header, self.line_end = header, rows.line_end
        if not header:
            return iter(())
        self._check_columns()
        places = [(name, header.index(name)) for name in self.columns]

        def content() -> Iterator[TableRow]:
            for line, row, problem in rows:
                values = {} if row is None else {name: row[at] for name, at in places}
                yield TableRow(f"line {line}{self.of}", values, row, problem)

        return content()

    def _check_columns(self) -> None:
        for name in self.columns:
            count = self.header.count(name)
            if count > 1:
                raise UserError(f"{self.shown} has {count} columns {name!r}. Rename all but one.")
            if not count:
                raise UserError(
                    f"{self.shown} has no column {name!r}: it has "
                    f"{listed(self.header, 12, form=repr)}. {self.remedy}"
                )

    def _parquet(self) -> Iterator[TableRow]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path, number = Path(self.name), 0
        if path.suffix.lower() in files.PACKED:
            raise UserError(f"{path} must not be compressed as a whole. Decompress it first.")

        def damaged() -> Any:
            return user_input(
                f"cannot read {path} as parquet after row {number}",
                remedy="It may be truncated, damaged or of another format: copy or write it again.",
            )

        raw, size = files.open_regular(path), files.size_of(path)
        with ExitStack() as opened:
            opened.enter_context(raw)
            with damaged():
                self.schema = pq.read_schema(raw)
                self.header = list(self.schema.names)
                self._check_columns()
                names = self.header if self.whole_rows else list(self.columns)
                texts = [name for name in names if pa.types.is_string(self.schema.field(name).type)]
                raw.seek(0)
                # Repeated strings stay dictionaries, and pages are read one by one: otherwise a
                # small file fills the memory.
                file = pq.ParquetFile(
                    raw, read_dictionary=texts, buffer_size=1 << 20, pre_buffer=False
                )
            opened.pop_all()
        expansion = Expansion(path, size)

        def rows() -> Iterator[TableRow]:
            nonlocal number
            count, done = max(file.metadata.num_rows, 1), 0
            with damaged():
                batches = file.iter_batches(batch_size=BATCH, columns=names)
            with raw:
                while True:
                    with damaged():
                        batch = next(batches, None)
                    if batch is None:
                        break
                    for array in batch.columns:
                        if not pa.types.is_dictionary(array.type):
                            expansion.add(array.nbytes)
                    for at in range(batch.num_rows):
                        number += 1
                        yield self._parquet_row(batch, at, number, expansion)
                    step = size * batch.num_rows // count
                    self.limits.tell(step)
                    done += step
                self.limits.tell(size - done)

        return rows()

    def _parquet_row(self, batch: Any, at: int, number: int, expansion: Expansion) -> TableRow:
        place = f"row {number}{self.of}"
        raw = batch.slice(at, 1) if self.whole_rows else None
        try:
            values = {name: batch.column(name)[at].as_py() for name in self.columns}
        except (ValueError, OverflowError) as error:
            return TableRow(place, {}, raw, f"cannot be read: {reason_of(error)}.")
        for value in values.values():
            if isinstance(value, str):
                expansion.add(len(value))
                if len(value) > self.limits.bytes:
                    return TableRow(place, {}, raw, self.limits.too_long())
        return TableRow(place, values, raw)


class _SeparatedRows:
    """Line, fields or None and problem of each row of CSV or TSV. After a quote that is
    not closed, reading resumes at the next line.

    What comes of a line within quotes does not depend on where they were opened. So of the lines
    that a broken record took in, one that opens quotes of its own ends in the same way, and is not
    read to that end again: time grows linearly with the number of lines.
    """

    def __init__(self, kind: Format, lines: Iterator[Line], limits: Limits) -> None:
        csv.field_size_limit(max(csv.field_size_limit(), limits.bytes))
        self._kind = kind
        self._limits = limits
        self._lines = lines
        self._again: deque[Line] = deque()
        self._taken: list[Line] = []  # the lines of the record under way
        self._broken: str | None = None
        self._open_problem: str | None = None  # of quotes that are open in the lines of `_again`
        self._open_fields: dict[int, int] = {}  # or line -> fields to the end of the record
        self._reader = self._new_reader()
        self._width = 0
        self.line_end = "\n"

    def __iter__(self) -> Iterator[SeparatedRow]:
        return self

    def _new_reader(self, line: str | None = None) -> Any:
        """The parser of the lines that follow, or of one line whose quotes may stay open."""
        # Tabs are never quoted in the files people have; quotes there are text.
        tabs: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if self._kind == "tsv" else {}
        given = self._feed() if line is None else iter([line])
        return csv.reader(given, strict=line is None, **tabs)

    def _feed(self) -> Iterator[str]:
        size = 0
        while True:
            if len(self._taken) == 1 and self._again:
                self._broken = self._problem_of_open_quotes()
                if self._broken is not None:
                    return
            item = self._again.popleft() if self._again else next(self._lines, None)
            if item is None:
                return
            size = size + len(item[1] or b"") if self._taken else 0
            self._taken.append(item)
            try:
                text = files.decode_line(*item, self._limits, self._taken[0][0])
                if size > self._limits.bytes:
                    raise UserError(self._limits.too_long("Close its quotes"))
            except UserError as error:
                self._broken = str(error)
                return  # the record ends here, and is not used
            yield text

    def __next__(self) -> SeparatedRow:
        while True:
            self._taken, problem, row = [], None, None
            try:
                row = next(self._reader, None)
            except csv.Error as error:
                problem = f"is not valid {self._kind.upper()}: {error}. {REMEDIES[self._kind]}"
            if self._broken is not None:
                problem, self._broken = self._broken, None
            if not self._taken:
                raise StopIteration
            start, first = self._taken[0]
            if problem is None and row == []:
                if self._kind == "csv" or self._width != 1:
                    continue  # a blank line
                row = [""]  # TSV has no quotes: this is how its one column is empty
            if problem is None and row is not None and self._width and len(row) != self._width:
                problem = self._about_width(len(row))
            if problem is not None or row is None:
                # Only the first line is given up: a quote in it may have taken in the others.
                rest = self._taken[1:]
                if rest:
                    self._open_problem = problem
                    self._open_fields = {} if row is None else self._fields_within_quotes(rest)
                self._again.extendleft(reversed(rest))
                self._reader = self._new_reader()
                return start, None, problem
            if not self._width:
                self._width = len(row)
                self.line_end = "\r\n" if (first or b"").endswith(b"\r\n") else "\n"
            return start, row, None

    def _about_width(self, fields: int) -> str:
        return (
            f"must have {self._width} fields, as the header has: got {fields}. {RAGGED[self._kind]}"
        )

    def _fields_of(self, item: Line, before: str = "") -> int:
        return len(next(self._new_reader(before + files.decode_line(*item, self._limits))))

    def _fields_within_quotes(self, lines: list[Line]) -> dict[int, int]:
        """The fields that begin in a line, read within quotes, and in those after it."""
        found, fields = {}, 0
        for item in reversed(lines):
            fields += self._fields_of(item, '"') - 1
            found[item[0]] = fields
        return found

    def _problem_of_open_quotes(self) -> str | None:
        """The problem of a record that opens quotes in its one line so far, if it is known."""
        if not self._open_fields:
            return self._open_problem
        fields = self._fields_of(self._taken[0]) + self._open_fields[self._again[0][0]]
        return None if fields == self._width else self._about_width(fields)


def read(
    path: Path,
    columns: Sequence[str],
    *,
    format: Format,  # noqa: A002  (the name of the key)
    documents: Documents,
    limits: Limits,
) -> Iterator[Placed]:
    """The records of one file with their places, each with `columns`; the first problem is raised.

    Plain text has one column: text.
    """
    kind = files.format_of(path, format)
    if kind == "conll":
        yield from conll.read(path, documents, limits)
        return
    if kind == "text" and list(columns) != [TEXT]:
        raise UserError(
            f"{path} is plain text and has no columns: {listed(columns, form=repr)} must come from "
            "CSV, TSV, JSON lines or parquet. Name the format with data.format."
        )
    if kind == "text" and documents != "line":
        yield from _documents(path, documents, limits)
        return
    for row in Table(str(path), kind, columns, limits, COLUMN_KEYS, of=f" of {path}").open():
        if row.problem is not None:
            raise UserError(f"{row.place} {row.problem}")
        yield row.place, row.values


def _documents(path: Path, documents: Documents, limits: Limits) -> Iterator[Placed]:
    """Plain text whose documents may have many lines."""
    if documents == "file":
        yield str(path), {TEXT: files.whole(path, limits)}
        return
    gathered, start = bytearray(), 1  # a list of lines takes far more memory than their text
    for number, line in chain(enumerate(files.lines(path, limits), start=1), [(0, "")]):
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
            yield f"line {start} of {path}", {TEXT: gathered.decode("utf-8").rstrip("\r\n")}
            gathered.clear()
