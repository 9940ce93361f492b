"""Names of variants: readable in a table, and safe and unique as folders.

A folder's name holds ASCII letters, digits and `_ . + -` alone, begins with a key, and is unique
without regard to case. What does not fit is replaced, and a digest of the whole is added, so that
the name depends on the variant alone and two variants never share a folder.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from ..artifact import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN = re.compile(r"[A-Za-z0-9_.+-]{1,60}")
LONGEST = 100  # characters of a folder's name, without a digest
SHORTENED = 40  # characters that are kept of a value that does not fit


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """The last part of each key, or the whole key where two keys end alike."""
    ends = Counter(key.rpartition(".")[2] for key in keys)
    return {key: end if ends[end := key.rpartition(".")[2]] == 1 else key for key in keys}


def folder_names(variants: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """A name for each variant, which is a list of keys and values."""
    names = [folder_name(settings) for settings in variants]
    count = Counter(name.casefold() for name in names)
    return [
        name if count[name.casefold()] == 1 else f"{name}-{_digest(settings)}"
        for name, settings in zip(names, variants, strict=True)
    ]


def folder_name(settings: Sequence[tuple[str, str]]) -> str:
    """`key-value-key-value`, with a digest if anything had to be changed."""
    parts = [text for setting in settings for text in setting]
    name = "-".join(map(safe, parts))
    changed = not all(_is_plain(part) for part in parts)
    if len(name) > LONGEST:
        name, changed = name[:LONGEST].rstrip(".-"), True
    return f"{name}-{_digest(settings)}" if changed else name


def safe(text: str) -> str:
    """The text with characters that any file system and shell takes as they are."""
    if _is_plain(text):
        return text
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text)[:SHORTENED].strip(".-") or "value"


def _is_plain(text: str) -> bool:
    return PLAIN.fullmatch(text) is not None and not text.endswith(".")


def _digest(settings: Sequence[tuple[str, str]]) -> str:
    text = "\0".join(f"{key}={value}" for key, value in settings)
    return digest(text, size=4)
