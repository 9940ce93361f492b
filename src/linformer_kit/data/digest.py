"""Digests by content: the same data gives the same digest on every machine, wherever it lies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifact import digest, hashed
from ..errors import UserError, user_input
from . import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from .examples import Row

TYPES = {"i": "<i8", "u": "<i8", "f": "<f4", "b": "<u1"}  # by numpy's kind of a type
TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER = 512 * files.MB


class RowDigest:
    """The digest of rows: of the names and the values of their columns, in order."""

    def __init__(self) -> None:
        self._hash = hashed()

    def through(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows; each is hashed on its way."""
        for row in rows:
            for name in sorted(row):
                data = _bytes(row[name])
                self._hash.update(f"{name} {len(data)} ".encode())
                self._hash.update(data)
            yield row

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8")
    values = np.asarray(value)
    return values.astype(TYPES[values.dtype.kind]).tobytes()


def names_digest(names: Sequence[str]) -> str:
    """The digest of names in their order."""
    return _hexdigest(list(names))


def tokenizer_digest(path: Path) -> str:
    """The digest of what a tokenizer.json (or one in a folder) says, not of how it is written.

    Padding and truncation are left out: they are how the tokenizer was called last, and change
    when it is saved again.
    """
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if files.size_of(file) > MAX_TOKENIZER:
        raise UserError(f"{file} is larger than {MAX_TOKENIZER // files.MB} MB: no tokenizer is.")
    with user_input(f"cannot read the tokenizer {file}"):
        content = json.loads(file.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        return _hexdigest({**content, "padding": None, "truncation": None})


def _hexdigest(content: Any) -> str:
    return digest(json.dumps(content, sort_keys=True, separators=(",", ":")))
