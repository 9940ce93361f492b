"""The rows of a file to predict on: CSV, TSV, JSON lines, parquet, plain text, a folder of texts.

A row that cannot be read is an item with its `problem`, and the next one follows: what `data/`
refuses as a whole must not end a job of hours. Memory holds one row (of parquet, a batch of 64).
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections import deque
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact import escaped
from ..data import files
from ..data.records import BY_SUFFIX
from ..errors import UserError, reason_of, user_input

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from ..config.schema import Format

STDIN = "-"
TEXTS = (".txt", ".md", ".rst", ".text", "")  # of the files of a folder; others are no texts
FILE_COLUMN, TEXT_COLUMN = "file", "text"
BATCH = 64  # rows of parquet
FORMATS: tuple[Format, ...] = ("text", "csv", "tsv", "jsonl", "parquet")
REMEDIES = {
    "csv": "Close every quote, and double a quote inside a quoted field.",
    "tsv": "A field of TSV must hold no tab and no line break.",
}
RAGGED = {
    "csv": "Add or remove fields, and quote a field that holds a comma or a line break.",
    "tsv": f"Add or remove fields. {REMEDIES['tsv']}",
}


@dataclass(frozen=True)
class Row:
    """One row.

    text: what the model is asked, or None where there is none. raw: the row as it is written again;
    None for one that could not be read at all, which is not written.
    """

    place: str
    text: str | None
    raw: Any
    problem: str | None = None


@dataclass
class Input:
    """A file, a folder or standard input, and which of its columns is read.

    as_text: makes the text of a value of the column, or raises a ValueError.
    reserved: names of columns that answers are written to.
    left_out: files of a folder that are no texts.
    done, total: bytes read, of how many (0: not known).
    """

    name: str
    column: str
    kind: Format
    limit: int
    as_text: Callable[[Any], str]
    reserved: tuple[str, ...] = ()
    header: list[str] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)
    line_end: str = "\n"
    schema: Any = None  # of parquet
    done: int = 0
    total: int = 0

    @property
    def is_folder(self) -> bool:
        return self.name != STDIN and Path(self.name).is_dir()

    @property
    def shown(self) -> str:
        return "standard input" if self.name == STDIN else self.name

    def open(self) -> Iterator[Row]:
        """The rows. The header is known once this has returned."""
        rows = self._open()
        for name in self.header:
            if name in self.reserved:
                raise UserError(
                    f"{self.shown} has a column {name!r}, which answers are written to. Rename it."
                )
        return rows

    def _open(self) -> Iterator[Row]:
        if self.is_folder:
            return self._folder()
        if self.kind == "parquet":
            return self._parquet()
        lines: Iterator[tuple[int, bytes | None]] = self._lines()
        if self.kind == "text":
            self.header = [TEXT_COLUMN]
            return self._texts(lines)
        if self.kind == "jsonl":
            lines = self._not_an_array(lines)
            if self.name != STDIN:
                self._check_key()
            return self._json_lines(lines)
        return self._table(lines)

    def identity(self) -> list[Any]:
        """What tells this input from another one."""
        if self.name == STDIN:
            return [STDIN, self.kind, self.column]
        paths = _texts_below(Path(self.name))[0] if self.is_folder else [Path(self.name)]
        with user_input(f"cannot read {self.name}"):
            stats = [(str(path.resolve()), path.stat()) for path in paths]
        found = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
        return [self.kind, self.column, found]

    def _lines(self) -> Generator[tuple[int, bytes | None]]:
        """The lines with their numbers; None for one that is longer than the limit."""
        if self.name == STDIN:
            stream = raw = sys.stdin.buffer
        else:
            path = Path(self.name)
            self.total = files.size_of(path)
            stream, raw = files.open_bytes(path)
        with stream, raw:
            number = 0
            while True:
                with user_input(f"cannot read {self.shown} after line {number}"):
                    line: bytes | None = stream.readline(self.limit + 1)
                    if not line:
                        return
                    number += 1
                    if len(line) > self.limit:
                        while line and not line.endswith(b"\n"):
                            line = stream.readline(self.limit + 1)
                        line = None
                    elif number == 1:
                        line = line.removeprefix(b"\xef\xbb\xbf")
                if self.total:
                    self.done = raw.tell()
                yield number, line

    def _decoded(self, number: int, line: bytes | None) -> str:
        """The text of a line. A problem calls the line "it": its number is the place of its row."""
        if line is None:
            raise UserError(
                f"it is longer than data.max_document_mb = {self.limit // files.MB} MB. Cut it."
            )
        try:
            return files.decode(line, Path(self.shown), number)
        except UserError as error:
            about = str(error).removeprefix(f"{Path(self.shown)} ")
            raise UserError(f"it {about.replace(f'line {number} ', 'it ', 1)}") from error

    def _texts(self, lines: Iterator[tuple[int, bytes | None]]) -> Iterator[Row]:
        for number, line in lines:
            try:
                text = self._decoded(number, line).rstrip("\r\n")
            except UserError as error:
                yield Row(f"line {number}", None, None, str(error))
                continue
            yield Row(f"line {number}", text, [text])

    def _json_lines(self, lines: Iterator[tuple[int, bytes | None]]) -> Iterator[Row]:
        for number, line in lines:
            place = f"line {number}"
            try:
                text = self._decoded(number, line)
                if not text.strip():
                    continue
                row = json.loads(text)
                if not isinstance(row, dict):
                    raise UserError(f"it is not a JSON object, but {type(row).__name__}.")
                taken = [name for name in self.reserved if name in row]
                if taken:
                    raise UserError(f"it has a key {taken[0]!r} already. Rename it.")
            except UserError as error:
                yield Row(place, None, None, str(error))
                continue
            except (ValueError, RecursionError) as error:
                yield Row(place, None, None, f"it is not valid JSON: {_json_reason(error)}.")
                continue
            raw = text.strip()
            if self.column in row:
                yield self._row(place, row[self.column], raw)
            else:
                missing = f"it has no key {self.column!r}: it has {_names(row) or 'none'}."
                yield Row(place, None, raw, missing)

    def _not_an_array(
        self, lines: Iterator[tuple[int, bytes | None]]
    ) -> Iterator[tuple[int, bytes | None]]:
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

    def _check_key(self) -> None:
        """Refuse a file of which no object has the key of the text."""
        first: dict[str, Any] | None = None
        lines = self._lines()
        for number, line in lines:
            try:
                row = json.loads(self._decoded(number, line))
            except (ValueError, RecursionError):
                continue  # reported with its number when the rows are read
            if isinstance(row, dict):
                if self.column in row:
                    break
                first = row if first is None else first
        else:
            if first is not None:
                raise UserError(
                    f"no row of {self.shown} has the key {self.column!r}: the first has "
                    f"{_names(first) or 'none'}. Name one with --column."
                )
        lines.close()
        self.done = 0

    def _row(self, place: str, value: Any, raw: Any) -> Row:
        try:
            return Row(place, self.as_text(value), raw)
        except ValueError as error:
            return Row(place, None, raw, f"the column {self.column!r} {error}")

    def _table(self, lines: Iterator[tuple[int, bytes | None]]) -> Iterator[Row]:
        records = _Records(self, lines)
        header = next(records, None)
        if header is None:
            raise UserError(f"{self.shown} is empty: it has no header.")
        if header.problem is not None:
            raise UserError(f"the header of {self.shown} cannot be read: {header.problem}")
        self.header, self.line_end = header.raw, records.line_end
        if self.header.count(self.column) != 1:
            raise UserError(_about_column(self.shown, self.column, self.header))
        at = self.header.index(self.column)
        return (
            row if row.problem is not None else self._row(row.place, row.raw[at], row.raw)
            for row in records
        )

    def _parquet(self) -> Iterator[Row]:
        import pyarrow.parquet as pq

        path = Path(self.name)
        damaged = user_input(f"cannot read {path} as parquet", remedy="Copy or write it again.")
        raw = files.open_regular(path)
        with damaged:
            file = pq.ParquetFile(raw, pre_buffer=False)
            self.schema = file.schema_arrow
        self.header = list(self.schema.names)
        if self.header.count(self.column) != 1:
            raise UserError(_about_column(self.shown, self.column, self.header))

        def rows() -> Iterator[Row]:
            self.total, number = file.metadata.num_rows, 0
            batches = file.iter_batches(batch_size=BATCH)
            with raw:
                while True:
                    with user_input(f"cannot read {path} as parquet after row {number}"):
                        batch = next(batches, None)
                    if batch is None:
                        return
                    for at in range(batch.num_rows):
                        number += 1
                        self.done = number
                        yield self._parquet_row(batch, at, number)

        return rows()

    def _parquet_row(self, batch: Any, at: int, number: int) -> Row:
        try:
            value = batch.column(self.column)[at].as_py()
        except (ValueError, OverflowError) as error:
            return Row(f"row {number}", None, batch.slice(at, 1), reason_of(error))
        return self._row(f"row {number}", value, batch.slice(at, 1))

    def _folder(self) -> Iterator[Row]:
        folder = Path(self.name)
        found, self.left_out = _texts_below(folder)
        if not found:
            raise UserError(f"the folder {folder} holds no texts ({', '.join(TEXTS[:-1])}).")
        self.header = [FILE_COLUMN]
        self.total = sum(files.size_of(path) for path in found)

        def rows() -> Iterator[Row]:
            limits = files.Limits(document_mb=max(1, self.limit // files.MB))
            for path in found:
                name = escaped(path.relative_to(folder).as_posix())
                try:
                    text = files.whole(path, limits)
                    yield Row(name, text, [name])
                except UserError as error:
                    yield Row(name, None, [name], escaped(str(error)))
                if path.exists():
                    self.done += path.stat().st_size

        return rows()


class _Records:
    """The records of CSV or TSV. After a quote that is not closed, reading resumes at the next
    line.

    What comes of a line within quotes does not depend on where they were opened. So of the lines
    that a broken record took in, one that opens quotes of its own ends in the same way, and is not
    read to that end again: time grows linearly with the number of lines.
    """

    def __init__(self, source: Input, lines: Iterator[tuple[int, bytes | None]]) -> None:
        self._source = source
        self._remedy, self._ragged = REMEDIES[source.kind], RAGGED[source.kind]
        self._lines = lines
        self._again: deque[tuple[int, bytes | None]] = deque()
        self._taken: list[tuple[int, bytes | None]] = []  # the lines of the record under way
        self._broken: str | None = None
        self._open_problem: str | None = None  # of quotes that are open in the lines of `_again`
        self._open_fields: dict[int, int] = {}  # or line -> fields to the end of the record
        self._reader = self._new_reader()
        self._width = 0
        self.line_end = "\n"

    def __iter__(self) -> Iterator[Row]:
        return self

    def _new_reader(self) -> Any:
        csv.field_size_limit(max(csv.field_size_limit(), self._source.limit))
        if self._source.kind == "csv":
            return csv.reader(self._feed(), strict=True)
        return csv.reader(self._feed(), delimiter="\t", quoting=csv.QUOTE_NONE, strict=True)

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
                text = self._source._decoded(*item)
                if size > self._source.limit:
                    raise UserError("it is too long, as if a quote were not closed.")
            except UserError as error:
                self._broken = str(error)
                return  # the record ends here, and is not used
            yield text

    def __next__(self) -> Row:
        while True:
            self._taken, problem, row = [], None, None
            try:
                row = next(self._reader, None)
            except csv.Error as error:
                problem = f"it is not valid {self._source.kind.upper()}: {error}. {self._remedy}"
            if self._broken is not None:
                problem, self._broken = self._broken, None
            if not self._taken:
                raise StopIteration
            start, first = self._taken[0]
            if problem is None and row == []:
                if self._source.kind == "csv" or self._width != 1:
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
                return Row(f"line {start}", None, None, problem)
            if not self._width:
                self._width = len(row)
                self.line_end = "\r\n" if (first or b"").endswith(b"\r\n") else "\n"
            return Row(f"line {start}", None, row)

    def _about_width(self, fields: int) -> str:
        return f"it must have {self._width} fields, as the header has: got {fields}. {self._ragged}"

    def _fields_within_quotes(self, lines: list[tuple[int, bytes | None]]) -> dict[int, int]:
        """The fields that begin in a line, read within quotes, and in those after it."""
        found, fields = {}, 0
        for number, line in reversed(lines):
            row = next(csv.reader([f'"{self._source._decoded(number, line)}']))
            fields += len(row) - 1
            found[number] = fields
        return found

    def _problem_of_open_quotes(self) -> str | None:
        """The problem of a record that opens quotes in its one line so far, if it is known."""
        if not self._open_fields:
            return self._open_problem
        row = next(csv.reader([self._source._decoded(*self._taken[0])]))
        fields = len(row) + self._open_fields[self._again[0][0]]
        return None if fields == self._width else self._about_width(fields)


def kind_of_input(name: str, asked: Format) -> Format:
    """The format of an input, by its name unless it is said."""
    if asked != "auto":
        if name != STDIN and Path(name).is_dir():
            raise UserError(f"--format has no effect on a folder of texts: got {asked}.")
        if name == STDIN and asked == "parquet":
            raise UserError("parquet is read from a file, not from standard input: name it.")
        return asked
    if name == STDIN:
        return "text"
    path = Path(name)
    if not os.path.lexists(path):
        raise UserError(f"there is no file {name}.")
    kind = BY_SUFFIX.get(files.kind_of(path), "text")
    if kind not in FORMATS:
        raise UserError(
            f"{name} has CoNLL columns, a word a line: predict reads {', '.join(FORMATS)}. Write "
            "its sentences as text, one a line."
        )
    return kind


def _texts_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The texts in a folder and below it in sorted order, and the files that are none."""
    with user_input(f"cannot read {folder}"):
        every = sorted(files.below(folder))
        regular = [path for path in every if path.is_file()]  # no pipe, no link to nothing
    texts = [path for path in regular if files.kind_of(path) in TEXTS and path.name[0] != "."]
    known = set(texts)
    return texts, [path for path in every if path not in known]


def _json_reason(error: Exception) -> str:
    """Why a line is not JSON; the parser's own "line 1" is not the line of the file."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return reason_of(error)


def _about_column(where: str, column: str, header: Sequence[str]) -> str:
    count = header.count(column)
    if count:
        return f"{where} has {count} columns {column!r}. Rename all but one."
    return f"{where} has no column {column!r}: it has {_names(header)}. Name one with --column."


def _names(names: Any) -> str:
    shown = [repr(str(name)[:40]) for name in list(names)[:12]]
    return ", ".join(shown) + (", ..." if len(names) > 12 else "")
