"""Writing the report: the page, and each figure as a file beside it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from .. import __version__
from ..figures.pictures import write_pictures
from .page import page
from .sections import answer, highlights, sections

if TYPE_CHECKING:
    from pathlib import Path

    from .collect import Evidence

TITLE = "What Linformer saves here"


class Report(NamedTuple):
    """What was written."""

    page: Path
    pictures: list[Path]
    answer: list[str]


def write_report(
    evidence: Evidence, path: Path, *, title: str = TITLE, pictures: bool = True
) -> Report:
    """The page at `path`; pictures in the folder beside it that has its name."""
    found = sections(evidence)
    folder = path.with_name(f"{path.stem}-figures")
    written: list[Path] = []
    if pictures:
        for section in found:
            for figure in section.figures:
                written += write_pictures(figure, folder)
    said = answer(evidence)
    text = page(
        title=title,
        answer=said,
        highlights=highlights(evidence),
        sections=found,
        problems=evidence.problems,
        made=_made(evidence),
        pictures=folder.name if written else None,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: a page that is open in a browser is never half written.
    staging = path.with_name(f".{path.name}.part")
    staging.write_text(text, encoding="utf-8")
    staging.replace(path)
    return Report(path, written, said)


def _made(evidence: Evidence) -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"Made by linformer-kit {__version__} on {now} of {len(evidence.records)} records and "
        f"{len(evidence.runs)} runs. Every figure was drawn from these records; no model ran for "
        "this page. Times are the best of the rounds, all contestants taking turns; peak memory is "
        "measured in fresh processes."
    )
