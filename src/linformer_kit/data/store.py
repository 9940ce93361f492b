"""The folder `data.cache`: prepared data appears in it complete, and nothing foreign is removed.

<fingerprint>/           prepared data; its meta.json is written last
<fingerprint>.partial/   prepared data under way; it gets its name when it is complete
<fingerprint>.lock       held by the process that prepares; the system releases it with the process

Both folders carry `MARKER`. Only files of the names that are written here are ever removed, from
folders with the marker.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ..artifact import foreign_files, lock, publish, remove_files, size_problem
from ..errors import UserError, reason_of, user_input
from ..measure import quantities
from .corpus import PARTS
from .digest import tokenizer_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MARKER = ".linformer-prepared"
META = "meta.json"
TOKENIZER = "tokenizer"
ROWS = {part: f"{part}.arrow" for part in PARTS}
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
OWN = (META, *ROWS.values(), *(f"{TOKENIZER}/{name}" for name in TOKENIZER_FILES), MARKER)
ELSEWHERE = "Name another folder with data.cache."


def writing(cache: Path) -> Any:
    """Turn whatever goes wrong while writing to the cache into one line."""
    return user_input(
        f"cannot keep prepared data in {cache}",
        remedy="Make room there, or name another folder with data.cache.",
    )


def locked(folder: Path, waiting: Callable[[], None]) -> ExitStack:
    """Let one process at a time prepare `folder`; `waiting` is called now and then."""
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f"{folder.name}.lock")
        return lock(file, folder, waiting=waiting, remedy=ELSEWHERE)


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """A new folder to write to, which becomes `folder` at the end, or is removed on any error."""
    partial = folder.with_name(f"{folder.name}.partial")
    with writing(folder.parent):
        remove(folder)  # damaged
        remove(partial)  # of a process that was killed
        partial.mkdir()
    try:
        with writing(folder.parent):
            (partial / MARKER).write_text("Written by linformer prepare.\n", encoding="utf-8")
        yield partial
        with writing(folder.parent):
            publish(partial, folder)
    except BaseException:
        with suppress(OSError, UserError):
            remove(partial)
        raise


def remove(folder: Path) -> None:
    """Remove a folder of prepared data; one that holds anything else is refused as it is."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise UserError(_foreign(folder, "it is no folder of prepared data"))
    if not (folder / MARKER).is_file() and any(folder.iterdir()):
        raise UserError(_foreign(folder, f"{MARKER} is missing, so it was not written here"))
    if strange := foreign_files(folder, OWN):
        raise UserError(_foreign(folder, f"it holds {strange[0].relative_to(folder)}"))
    remove_files(folder, OWN)


def _foreign(folder: Path, reason: str) -> str:
    return (
        f"{folder} is in the way of prepared data and is left as it is: {reason}. "
        f"Move it away, or {ELSEWHERE[0].lower()}{ELSEWHERE[1:]}"
    )


def sizes(folder: Path) -> dict[str, int]:
    """The files of a folder with their sizes in bytes."""
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_meta(folder: Path) -> dict[str, Any]:
    """What is known about prepared data."""
    meta = json.loads((folder / META).read_bytes())
    if not isinstance(meta, dict):
        raise ValueError(f"{META} is not a JSON object")
    return meta


def damage(folder: Path) -> str | None:
    """Why prepared data cannot be used, or None. Rows are opened, and not all of them read."""
    import pyarrow as pa

    try:
        meta = read_meta(folder)
        for name, size in meta["files"].items():
            if (problem := size_problem(folder / name, size)) is not None:
                return f"{name} {problem}"
        for part in PARTS:
            rows = meta["parts"][part]["rows"]
            if rows == 0:
                continue
            with pa.memory_map(str(folder / ROWS[part])) as file, pa.ipc.open_stream(file) as data:
                table = data.read_all()
                table.validate()
                if table.num_rows != rows:
                    return (
                        f"{ROWS[part]} has {quantities.count(table.num_rows, 'row')} instead of "
                        f"{rows:,}"
                    )
        tokenizer = meta["digest"]["tokenizer"]
        if tokenizer is not None and tokenizer_digest(folder / TOKENIZER) != tokenizer:
            return "the tokenizer has changed"
    except Exception as error:  # whatever a damaged file can raise
        return reason_of(error)
    return None
