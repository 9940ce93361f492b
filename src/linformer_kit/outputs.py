"""Output files: which may be replaced, how they are written, and how they are recognised."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING

from .errors import UserError, user_input

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNK = 2**20
MAKE_ROOM = (
    "What was there is intact; make room, or use another folder, and give the same command again."
)
STAGING = ".saving"  # prefix of temporary names beside the final one


def check_replaceable(
    path: Path, ours: Callable[[Path], bool], *, remedy: str = "Name another file with --out."
) -> None:
    """Refuse a path whose content would be lost: anything but a file that is `ours`.

    A path where nothing is, and an empty file, pass. A folder, a link, a pipe or a device, and a
    file of something else are refused. Call it before the work whose result is written, and again
    before the file is replaced if the work takes long.
    """
    with user_input(f"cannot write {path}", remedy=remedy):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise UserError(f"{path} is not a regular file: it is left alone. {remedy}")
        if path.exists() and path.stat().st_size and not ours(path):
            raise UserError(
                f"{path} exists and was not written by this command: it is left alone. {remedy}"
            )


def write_atomic(path: Path, content: str | bytes, *, remedy: str = MAKE_ROOM) -> None:
    """Write a file atomically: it is the old one or the new one, whatever happens."""
    staging = path.with_name(f"{STAGING}-{os.getpid()}-{path.name}")
    try:
        with staging.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}. {remedy}") from error
    finally:
        staging.unlink(missing_ok=True)


def follow_umask(folder: Path) -> None:
    """Give the weights in a folder the mode of every other new file.

    safetensors writes them by way of a temporary file, which its owner alone may read.
    """
    mask = os.umask(0o077)
    os.umask(mask)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o666 & ~mask)


def json_bytes(values: object) -> bytes:
    """Values as readable JSON.

    A file name that is not UTF-8 holds lone surrogates, which cannot be encoded; they become the
    escapes of JSON, so that reading gives the same name again.
    """
    text = json.dumps(values, indent=1, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "backslashreplace")


def escaped(text: str) -> str:
    """Text with escapes, which JSON reads, for the bytes of a file name that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def file_digest(path: Path) -> str:
    """Of the content of a file, by which it is recognised later."""
    found = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def staged_name(path: Path) -> str | None:
    """The final name of a file that `write_atomic` left unfinished when it was killed."""
    found = re.fullmatch(rf"{re.escape(STAGING)}-\d+-(.+)", path.name)
    return found[1] if found and path.is_file() and not path.is_symlink() else None


def holds(path: Path, *markers: str) -> bool:
    """Whether one of the markers stands anywhere in a file."""
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
