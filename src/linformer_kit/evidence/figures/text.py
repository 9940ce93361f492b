"""Text of figures: names come from files and users, and are shown as they are.

plotly reads a part of HTML in every text (<b>, <a href>), and entities; XML and fonts cannot hold
control characters and lone surrogates.
"""

from __future__ import annotations

import re
from html import escape

LONGEST = 80  # characters of a text in a picture
# Control characters but for line breaks and tabs, overrides of the direction of writing, lone
# surrogates, and what XML does not allow.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """The text with a replacement character where nothing can be shown."""
    return UNPRINTABLE.sub("\ufffd", str(text))  # records may hold other things than text


def for_plotly(text: str) -> str:
    """The text without markup, for a drawing."""
    return escape(printable(text), quote=False)


def for_markdown(text: str) -> str:
    """The text without markup, for a table of Markdown."""
    for mark, shown in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "\\`")):
        text = text.replace(mark, shown)
    return text


def for_matplotlib(text: str) -> str:
    """The text for a picture, where a long one would leave no room for the axes."""
    shown = printable(text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 21]}…{shown[-20:]}"


def for_legend(text: str) -> str:
    """The text for a legend of a picture: it leaves out names that begin with an underscore."""
    shown = for_matplotlib(text)
    return f"\u200b{shown}" if shown.startswith("_") or not shown else shown
