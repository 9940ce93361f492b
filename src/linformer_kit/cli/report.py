"""`linformer report`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import UserError, user_input
from ..measure import quantities
from .bench import print_plainly
from .sheets import show_sheets


def report(
    paths: Annotated[list[Path], typer.Argument(help="Records, runs, or folders that hold them.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="The title of the page.")] = None,
    pictures: Annotated[
        bool,
        typer.Option("--pictures/--no-pictures", help="Also write PNG and SVG of figures."),
    ] = True,
) -> None:
    """One page of all that was measured and trained: what is saved, and does it hold?"""
    try:
        from ..evidence.bench.results import headline
        from ..evidence.report.collect import collect
        from ..evidence.report.write import TITLE, write_report
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jinja2", "matplotlib", "plotly"):
            raise
        raise UserError(
            f"a report needs {error.name}: pip install 'linformer-kit[report]'"
        ) from error
    with user_input("cannot make a report of these records"):
        evidence = collect(paths)
        with user_input(f"cannot write {out}"):
            out.parent.mkdir(parents=True, exist_ok=True)
        written = write_report(evidence, out, title=title or TITLE, pictures=pictures)
        evidence = written.evidence  # without what cannot be shown
    console, aside = Console(), Console(stderr=True)
    for problem in evidence.problems:
        print_plainly(aside, problem)
    show_sheets(console, headline(evidence.records))
    for sentence in written.answer:
        print_plainly(console, sentence)
    if written.pictures:
        folder = written.pictures[0].parent
        pictures_there = quantities.count(len(written.pictures), "picture")
        print_plainly(console, f"wrote {pictures_there} in {folder}")
    print_plainly(console, f"The report is {written.page.resolve()}")
