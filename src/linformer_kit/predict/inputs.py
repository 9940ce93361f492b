"""The rows of a file to predict on, each with the text that the model is asked.

A row that cannot be read is an item with its `problem`, and the next one follows: a bad row must
not end a job of hours.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifact import escaped
from ..data import files
from ..data.files import STDIN, TEXT_SUFFIXES
from ..data.tables import Table
from ..errors import UserError, user_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..config.schema import Format
    from ..data.tables import TableRow

TEXTS = (*TEXT_SUFFIXES, "")  # of the files of a folder; others are no texts
FILE_COLUMN = "file"
FORMATS: tuple[Format, ...] = ("text", "csv", "tsv", "jsonl", "parquet")


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
    document_mb: int
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
        return files.shown_name(self.name)

    def open(self) -> Iterator[Row]:
        """The rows. The header is known once this has returned."""
        rows = self._folder() if self.is_folder else self._table()
        for name in self.header:
            if name in self.reserved:
                raise UserError(
                    f"{self.shown} has a column {name!r}, which answers are written to. Rename it."
                )
        return rows

    def identity(self) -> list[Any]:
        """What tells this input from another one."""
        if self.name == STDIN:
            return [STDIN, self.kind, self.column]
        paths = _texts_below(Path(self.name))[0] if self.is_folder else [Path(self.name)]
        with user_input(f"cannot read {self.name}"):
            stats = [(str(path.resolve()), path.stat()) for path in paths]
        found = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
        return [self.kind, self.column, found]

    def _advance(self, size: int) -> None:
        self.done += size

    def _table(self) -> Iterator[Row]:
        table = Table(
            self.name,
            self.kind,
            [self.column] if self.kind != "text" else [],
            files.Limits(self.document_mb, self._advance),
            "Name one with --column.",
            self.reserved,
            whole_rows=True,
        )
        if self.name != STDIN:
            self.total = files.size_of(Path(self.name))
        rows = table.open()
        if self.kind == "jsonl" and self.name != STDIN:
            table.check_keys()
        if not table.header and self.kind != "jsonl":
            raise UserError(f"{self.shown} is empty: it has no header.")
        self.header, self.line_end, self.schema = table.header, table.line_end, table.schema
        return map(self._row, rows)

    def _row(self, row: TableRow) -> Row:
        problem = row.problem and f"it {row.problem}"
        if problem is None:
            (value,) = row.values.values()
            try:
                return Row(row.place, self.as_text(value), row.raw)
            except ValueError as error:
                problem = f"the column {self.column!r} {error}"
        return Row(row.place, None, row.raw, problem)

    def _folder(self) -> Iterator[Row]:
        folder = Path(self.name)
        found, self.left_out = _texts_below(folder)
        if not found:
            raise UserError(f"the folder {folder} holds no texts ({', '.join(TEXTS[:-1])}).")
        self.header = [FILE_COLUMN]
        self.total = sum(files.size_of(path) for path in found)
        limits = files.Limits(self.document_mb, self._advance)

        def rows() -> Iterator[Row]:
            for path in found:
                name = escaped(path.relative_to(folder).as_posix())
                try:
                    yield Row(name, files.whole(path, limits), [name])
                except UserError as error:
                    yield Row(name, None, [name], escaped(str(error)))

        return rows()


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
    kind = files.format_of(path)
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
