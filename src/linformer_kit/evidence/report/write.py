"""Writing the report: the page, and each figure as a file beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from ... import __version__
from ...artifact import check_replaceable, holds, write_atomic
from ...errors import reason_of, user_input
from ...measure import quantities
from ..figures.interactive import drawing
from ..figures.pictures import MADE_BY
from ..figures.pictures import pictures as pictures_of
from .page import MARKER, page
from .sections import answer, highlights, sections
from .usable import usable

if TYPE_CHECKING:
    from pathlib import Path

    from .collect import Evidence
    from .sections import Section

TITLE = "What Linformer saves here"
REMEDY = "Name another file with --out."


class Report(NamedTuple):
    """The files that were written, and the evidence they show."""

    page: Path
    pictures: list[Path]
    answer: list[str]
    evidence: Evidence


def write_report(
    evidence: Evidence, path: Path, *, title: str = TITLE, pictures: bool = True
) -> Report:
    """The page at `path`; pictures in the folder beside it that has its name.

    An existing file that no report wrote is an error and is left alone.
    """
    check_replaceable(path, _is_report)
    folder = path.with_name(f"{path.stem}-figures")
    evidence = usable(evidence)
    found, files, problems = _drawn(sections(evidence), pictures=pictures)
    evidence = replace(evidence, problems=[*evidence.problems, *problems])
    if files and folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder. Name another page with --out.")
    for name in files:
        check_replaceable(folder / name, lambda picture: holds(picture, MADE_BY))
    with user_input(f"cannot write {path}", remedy=REMEDY):
        path.parent.mkdir(parents=True, exist_ok=True)
        if files:
            folder.mkdir(exist_ok=True)
    for name, data in files.items():
        write_atomic(folder / name, data, remedy=REMEDY)
    said = answer(evidence)
    text = page(
        title=title,
        answer=said,
        highlights=highlights(evidence),
        sections=found,
        problems=evidence.problems,
        made=_made(evidence),
        pictures=folder.name if files else None,
    )
    check_replaceable(path, _is_report)
    write_atomic(path, text.encode(errors="replace"), remedy=REMEDY)
    return Report(path, [folder / name for name in files], said, evidence)


def _drawn(
    found: list[Section], *, pictures: bool
) -> tuple[list[Section], dict[str, bytes], list[str]]:
    """The sections with the figures that can be drawn, their files, and what cannot be drawn."""
    files: dict[str, bytes] = {}
    problems: list[str] = []
    kept = []
    for section in found:
        figures = []
        for figure in section.figures:
            try:
                json.dumps(drawing(figure), allow_nan=False)
                files |= pictures_of(figure) if pictures else {}
            except Exception as error:  # whatever a damaged record leads to
                problems.append(
                    f"the figure {figure.title!r} cannot be drawn ({reason_of(error)}); left out"
                )
                continue
            figures.append(figure)
        kept.append(replace(section, figures=tuple(figures)))
    return kept, files, problems


def _is_report(path: Path) -> bool:
    return holds(path, MARKER)


def _made(evidence: Evidence) -> str:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"Made by linformer-kit {__version__} on {now} of "
        f"{quantities.count(len(evidence.records), 'record')} and "
        f"{quantities.count(len(evidence.runs), 'run')}. Every figure was drawn from these "
        "records; no model ran for "
        "this page. Times are the best of the rounds, all models taking turns; peak memory is "
        "measured in fresh processes."
    )
