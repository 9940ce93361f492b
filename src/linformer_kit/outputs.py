"""Output files: which may be replaced (only those that this package wrote), and atomic writes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .errors import UserError, user_input

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 2**20
STAGING = ".saving-"  # begins the name of a file that is being written; a kill may leave one


def check_replaceable(path: Path, *markers: str, option: str = "--out") -> None:
    """Refuse a path whose content would be lost: anything but a file that holds one of `markers`.

    A path where nothing is, and an empty file, pass. A folder, a link to nothing, a pipe or a
    device, and a file without a marker are refused. Call it before the work whose result is
    written, and again before the file is replaced if the work takes long.
    """
    elsewhere = f"Name another file with {option}."
    with user_input(f"cannot write {path}", remedy=elsewhere):
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path} is a link to a file that does not exist. {elsewhere}")
        if not path.exists():
            return
        if not path.is_file():
            raise UserError(f"{path} is not a regular file. {elsewhere}")
        if path.stat().st_size and not holds(path, *markers):
            raise UserError(
                f"{path} exists and was not written by this command: it is left alone. {elsewhere}"
            )


def holds(path: Path, *markers: str) -> bool:
    """Whether a file contains one of the markers."""
    wanted = [marker.encode() for marker in markers]
    overlap = max(map(len, wanted)) - 1  # a marker may lie across two chunks
    before = b""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            content = before + chunk
            if any(marker in content for marker in wanted):
                return True
            before = content[-overlap:] if overlap else b""
    return False


def write_atomic(path: Path, data: bytes) -> None:
    """Write or replace a file: it holds the old content or the new, whatever happens."""
    staging = path.with_name(f"{STAGING}{os.getpid()}")
    try:
        with staging.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)
