"""Docstrings for the documentation site: the section `Args:` becomes a list in Markdown.

The docstrings of this package describe several arguments at once ("dim, depth: as in ..."), which
griffe's parsers take for one name. So the section is turned into a list here, and the rest of a
docstring is Markdown already.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from griffe import Extension

if TYPE_CHECKING:
    from griffe import Object

SECTION = re.compile(r"^Args:\n((?:(?:[ ]{4}.*)?\n?)+)", re.MULTILINE)
NAME = re.compile(r"\w+[*]?")


class Arguments(Extension):
    """Rewrites every docstring once, when its object has been read."""

    def on_instance(self, *, obj: Object, **others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring with its arguments as a list."""
    return SECTION.sub(lambda found: f"**Arguments**\n\n{_items(found[1])}\n\n", text)


def _items(block: str) -> str:
    items: list[str] = []
    for line in block.splitlines():
        if not line.strip():
            continue
        if re.match(r"[ ]{5,}", line):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line.strip())
    return "\n".join(f"- {_named(item)}" for item in items)


def _named(item: str) -> str:
    names, colon, text = item.partition(":")
    if not colon:
        return item
    parts = re.split(r"(, | and )", names)
    return "".join(f"`{part}`" if NAME.fullmatch(part) else part for part in parts) + colon + text
