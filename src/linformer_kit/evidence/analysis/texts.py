"""Texts to read with a model: files, or a corpus that comes with this package."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = "Give a file of plain text in UTF-8"
PEEK = 4096  # bytes that are looked at before a model is loaded
LONGEST_LINE = 1_000_000  # characters; what is longer is read in parts


def check_text(source: str) -> None:
    """A file or a built-in corpus of texts; anything else is refused before a model is loaded."""
    if _builtin(source) is not None:
        return
    path = Path(source)
    if not path.is_file():
        raise UserError(
            f"--text {source} is no file. {PLAIN}, or python-docs, the texts of Python's own "
            "documentation."
        )
    with path.open("rb") as file:
        start = file.read(PEEK)
    if not start.strip():
        raise UserError(f"--text {source} holds no text. {PLAIN}.")
    if b"\0" in start:
        raise UserError(f"--text {source} is a binary file. {PLAIN}.")


def lines_of(source: str) -> Iterator[str]:
    """Line by line: a text may be larger than memory."""
    path = Path(source)
    if not path.is_file():
        corpus = _builtin(source)
        assert corpus is not None
        for record in corpus.records({}, 0):
            yield record["text"]
        return
    number = 1
    try:
        with path.open(encoding="utf-8") as file:
            while line := file.readline(LONGEST_LINE):
                yield line
                number += line.endswith("\n")
    except UnicodeDecodeError as error:
        raise UserError(
            f"--text {source} is not UTF-8 after line {number - 1}: {error.reason}. {PLAIN}."
        ) from error


def _builtin(name: str) -> Any:
    """A corpus whose records are texts."""
    if name != "python-docs":
        return None
    return importlib.import_module("linformer_kit.data.builtin").BUILTIN[name]
