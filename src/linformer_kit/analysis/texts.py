"""Texts to read with a model: files, or a corpus that comes with this package."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_text(source: str) -> None:
    """A file or a built-in corpus of texts; anything else is refused before a model is loaded."""
    if not Path(source).is_file() and _builtin(source) is None:
        raise ValueError(
            f"--text {source} is no file. Give a file of plain text, or python-docs, the texts of "
            "Python's own documentation."
        )


def lines_of(source: str) -> Iterator[str]:
    """Line by line: a text may be larger than memory."""
    path = Path(source)
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from lines
        return
    corpus = _builtin(source)
    assert corpus is not None
    for record in corpus.records({}, 0):
        yield record["text"]


def _builtin(name: str) -> Any:
    """A corpus whose records are texts."""
    if name != "python-docs":
        return None
    return importlib.import_module("linformer_kit.data.builtin").BUILTIN[name]
