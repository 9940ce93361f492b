"""Records of measurements: one JSON object a line, written as soon as it is measured."""

from __future__ import annotations

import errno
import json
import os
from contextlib import nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UserError, reason_of, user_input

if TYPE_CHECKING:
    from pathlib import Path

Record = dict[str, Any]

LINES_TRIED = 1000
ELSEWHERE = "Name another file with --out."


class RecordFile:
    """A file of records to append to. A run that is stopped leaves all it has measured."""

    def __init__(self, path: Path) -> None:
        if path.parent.is_file():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent))
        check_appendable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        torn = _ends_within_a_line(path)
        self._file = path.open("a", encoding="utf-8")
        if torn:  # by a crash: what is written now must not become part of that line
            self._file.write("\n")
            self._file.flush()
        self._start = path.stat().st_size

    @property
    def written(self) -> int:
        """Records added so far, counted in the file: Ctrl-C may come just after a line is out."""
        with self.path.open("rb") as file:
            file.seek(self._start)
            return file.read().count(b"\n")

    def append(self, record: Record) -> None:
        line = json.dumps(record, allow_nan=False) + "\n"
        with user_input(f"cannot write {self.path}", remedy="What was written before is there."):
            self._file.write(line)
            self._file.flush()

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with suppress(OSError) if kind is not None else nullcontext():
            self._file.close()  # writes what is buffered, which may have failed already


def check_appendable(path: Path) -> None:
    """Refuse a path that holds anything but records: nothing is added to another's file."""
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a link to a file that does not exist. {ELSEWHERE}")
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.exists():
        return
    if not path.is_file():  # a pipe or a device: records are read again, and counted
        raise UserError(f"{path} is not a regular file. {ELSEWHERE}")
    with path.open("rb") as file:
        lines = [line for line in islice(file, LINES_TRIED) if line.strip()]
    if lines and not any(_is_record(line) for line in lines):
        raise UserError(
            f"{path} holds something else than records of measurements: nothing is added to it. "
            f"{ELSEWHERE}"
        )


def _is_record(line: bytes) -> bool:
    """Whether a line is a record, or the beginning of one that a crash has torn."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith((b'{"bench": ', b'{"kind": '))
    return isinstance(record, dict) and isinstance(record.get("machine"), dict)


class Reading(NamedTuple):
    """What a file holds, and what is wrong with it."""

    records: list[Record]
    problems: list[str]


def read_records(path: Path) -> Reading:
    """Every record that can be read. A line that cannot is left out and reported."""
    records: list[Record] = []
    problems: list[str] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # not UTF-8 is a ValueError too
            problems.append(f"{path}, line {number}: not JSON ({reason_of(error)}); left out")
            continue
        if isinstance(record, dict):
            records.append(record)
        else:
            problems.append(f"{path}, line {number}: not a JSON object; left out")
    return Reading(records, problems)


def _ends_within_a_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
