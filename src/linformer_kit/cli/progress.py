"""The progress of reading a corpus or documents."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextmanager
def corpus_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar of bytes on a terminal; elsewhere a line on stderr now and then."""
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task: Any = None

        def tell(what: str, done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task(what, total=None)
            bar.update(task, description=what, completed=done, total=total or None)
            if total and done >= total:
                bar.stop()  # what follows writes to the terminal itself

        yield tell


def _progress_lines() -> Callable[[str, int, int], None]:
    begun = last = time.monotonic()
    before = 0

    def tell(what: str, done: int, total: int) -> None:
        nonlocal begun, last, before
        if done < before:  # the next part begins
            begun = time.monotonic()
        before = done
        if time.monotonic() - last > 5 and not 0 < total <= done:
            from ..measure.cells import time_left  # imports torch

            last = time.monotonic()
            share = f"{100 * done / total:.0f} %, " if total else ""
            left = time_left(last - begun, [done, total - done], 1) if total else ""
            sys.stderr.write(f"{what}: {share}{done / 1e6:,.1f} MB{left}\n")

    return tell
