"""The page: one HTML file with everything in it. It asks the network for nothing, and may not."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib import resources
from typing import TYPE_CHECKING
from urllib.parse import quote

from ..figures.figure import HeatMap
from ..figures.interactive import drawing, library
from ..figures.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..figures.figure import Figure
    from ..figures.sheet import Sheet
    from .sections import Highlight, Section

GENERATOR = "linformer-kit report"
# By these a page that was written here is known; the second stands in pages of older versions.
MARKERS = (
    f'<meta name="generator" content="{GENERATOR}">',
    '<div class="brand"><span>linformer-kit</span><button class="theme"',
)


def page(
    *,
    title: str,
    answer: Sequence[str],
    highlights: Sequence[Highlight],
    sections: Sequence[Section],
    problems: Sequence[str],
    made: str,
    pictures: str | None = None,
) -> str:
    """The whole document. `pictures` is the folder beside it that holds each figure as a file."""
    drawings = {figure.name: drawing(figure) for section in sections for figure in section.figures}
    scripts = (library(), _asset("page.js"))
    parts = [
        "<!doctype html>",
        '<html lang="en" data-theme="light">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
        MARKERS[0],
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{_asset('page.css')}</style>",
        "</head>",
        "<body>",
        _top(title, answer, highlights),
        _navigation(sections),
        "<main>",
        *(_section(section, pictures) for section in sections),
        _problems(problems),
        "</main>",
        f"<footer>{escape(made)}</footer>",
        f'<script type="application/json" id="drawings">{_json(drawings)}</script>',
        *(f"<script>{script}</script>" for script in scripts),
        "</body>",
        "</html>",
    ]
    return "\n".join(part for part in parts if part)


def _policy(scripts: Sequence[str]) -> str:
    """What a browser allows: these scripts and no others, and no request to anywhere."""
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    known = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {known} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; form-action 'none'; base-uri 'none'"
    )


def escape(text: str) -> str:
    """The text as it is, in an element or an attribute."""
    return html.escape(printable(text))


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """For a script element, which `</` would end: without a single `<`."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _top(title: str, answer: Sequence[str], highlights: Sequence[Highlight]) -> str:
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in answer)
    stats = "".join(
        f'<div class="stat"><dt>{escape(one.label)}</dt><dd>{escape(one.value)}</dd></div>'
        for one in highlights
    )
    return (
        '<header class="top"><div class="brand"><span>linformer-kit</span>'
        '<button class="theme" type="button">Dark</button></div>'
        f'<h1>{escape(title)}</h1><div class="answer">{sentences}</div>'
        + (f'<dl class="stats">{stats}</dl>' if stats else "")
        + "</header>"
    )


def _navigation(sections: Sequence[Section]) -> str:
    links = "".join(
        f'<li><a href="#{section.name}">{escape(section.short)}</a></li>' for section in sections
    )
    return f"<nav><ol>{links}</ol></nav>" if len(sections) > 1 else ""


def _section(section: Section, pictures: str | None) -> str:
    figures = "".join(
        _figure(figure, pictures, wide=_is_wide(number, len(section.figures), figure))
        for number, figure in enumerate(section.figures)
    )
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2>'
        f'<p class="lead">{escape(section.lead)}</p>'
        + (f'<div class="figures">{figures}</div>' if figures else "")
        + "".join(_sheet(sheet) for sheet in section.sheets)
        + "</section>"
    )


def _is_wide(number: int, count: int, figure: Figure) -> bool:
    """The last of an odd number fills its line; so does a map with many columns."""
    alone = count % 2 == 1 and number == count - 1
    return alone or (isinstance(figure, HeatMap) and count == 1)


def _figure(figure: Figure, pictures: str | None, *, wide: bool) -> str:
    files = ""
    if pictures is not None:
        links = " · ".join(
            f'<a href="./{quote(pictures, errors="replace")}/{quote(figure.name)}.{kind}">'
            f"{kind.upper()}</a>"
            for kind in ("png", "svg")
        )
        files = f" {links}"
    return (
        f'<figure class="card{" wide" if wide else ""}"><h3>{escape(figure.title)}</h3>'
        f'<div class="plot" id="plot-{escape(figure.name)}" role="img" '
        f'aria-label="{escape(figure.title)}"></div>'
        f'<figcaption class="small">{escape(figure.caption)}{files}</figcaption></figure>'
    )


def _sheet(sheet: Sheet) -> str:
    heads = "".join(
        f'<th scope="col"{_classes(_kind(number, sheet))}>{escape(column)}</th>'
        for number, column in enumerate(sheet.columns)
    )
    rows = []
    for row in sheet.rows:
        cells = []
        for number, entry in enumerate(row):
            names = _kind(number, sheet)
            if entry.tone != "plain":
                names.append(entry.tone)
            cells.append(f"<td{_classes(names)}>{escape(entry.text)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    notes = "".join(f"<li>{escape(note)}</li>" for note in sheet.notes)
    return (
        f'<div class="card"><h3>{escape(sheet.title)}</h3><div class="scroll"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + (f'<p class="small">{escape(sheet.caption)}</p>' if sheet.caption else "")
        + "</div>"
    )


def _kind(number: int, sheet: Sheet) -> list[str]:
    if number < sheet.keys:
        return ["key"]
    return ["words"] if sheet.is_text(number) else []


def _classes(names: list[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return (
        '<section id="problems"><h2>What could not be read</h2>'
        f'<div class="card"><ul class="notes">{items}</ul></div></section>'
    )
