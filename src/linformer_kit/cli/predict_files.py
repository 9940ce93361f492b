"""`linformer predict RUN --file IN --out OUT`: the options, the progress and the exit code."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from ..errors import one_of

if TYPE_CHECKING:
    from ..predict.file_job import Progress
    from ..runs.folder import RunFolder

EVERY = 10.0  # seconds between two lines of progress
EARLY = 2  # lines at once: before the first pool, and after it


def answer_file(
    folder: "RunFolder",
    name: str,
    out: Path,
    *,
    column: str | None,
    file_format: str | None,
    tokens_per_batch: int | None,
    which: str,
    options: dict[str, Any],
    onnx: Path | None,
    on_overflow: str | None,
) -> None:
    """Answer a file. Exit code 2 if a row has no answer."""
    from ..predict.answers import TOKENS_PER_BATCH, Options, Predictor
    from ..predict.file_job import predict_file
    from ..predict.inputs import FORMATS

    chosen = one_of("--format", file_format or "auto", ("auto", *FORMATS))
    with _progress() as tell:
        predictor = Predictor(
            folder,
            which=which,
            options=Options(**{"top": 1} | options),
            onnx=onnx,
            on_overflow=on_overflow,
            tokens_per_batch=tokens_per_batch or TOKENS_PER_BATCH,
        )
        totals = predict_file(
            predictor,
            folder.config(),
            name,
            out,
            column=column,
            format=chosen,
            say=lambda text: typer.echo(f"linformer: {text}", err=True),
            tell=tell,
        )
    for line in totals.lines(predictor.policy):
        typer.echo(f"{out}: {line}", err=True)
    if not totals.complete:
        raise typer.Exit(2)


@contextmanager
def _progress() -> Iterator[Callable[["Progress"], None]]:
    """A bar on a terminal; elsewhere a line on standard error now and then."""
    if not sys.stderr.isatty():
        typer.echo("predict: loading the model", err=True)
        lines, last = 0, 0.0

        def tell_line(progress: "Progress") -> None:
            nonlocal lines, last
            if lines < EARLY or time.monotonic() - last > EVERY:
                lines, last = lines + 1, time.monotonic()
                typer.echo(progress.line(), err=True)

        yield tell_line
        return
    columns = (BarColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("predict: loading the model", total=None)

        def tell(progress: "Progress") -> None:
            bar.update(
                task,
                description=progress.line(),
                completed=progress.done,
                total=progress.total or None,
            )

        yield tell
