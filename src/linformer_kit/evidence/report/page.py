"""The page: one self-contained HTML file, made from `assets/page.html`.

The template escapes every value but the package's own style, scripts and marker. The content
security policy allows these scripts, by their hashes, and no request.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..figures.interactive import drawing, library
from ..figures.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .sections import Highlight, Section

# In every page that a report wrote: such a file may be replaced.
MARKER = '<meta name="generator" content="linformer-kit report">'


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
    """The whole document. `pictures` is the folder beside it with each figure as PNG and SVG."""
    loader = PackageLoader("linformer_kit.evidence.report", "assets")
    templates = Environment(
        loader=loader,
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else printable(value),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    style, script = (loader.get_source(templates, f"page.{kind}")[0] for kind in ("css", "js"))
    scripts = (library(), script)
    return templates.get_template("page.html").render(
        policy=_policy(scripts),
        marker=MARKER,
        style=style,
        title=title,
        answer=answer,
        highlights=highlights,
        sections=sections,
        problems=problems,
        made=made,
        pictures=None if pictures is None else quote(pictures, errors="replace"),
        drawings={figure.name: drawing(figure) for one in sections for figure in one.figures},
        scripts=scripts,
    )


def _policy(scripts: Sequence[str]) -> str:
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    known = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in hashes)
    return (
        f"default-src 'none'; script-src {known} 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; form-action 'none'; base-uri 'none'"
    )
