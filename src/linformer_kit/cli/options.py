"""Arguments and options that several commands have, and values with commas between them.

Imports no torch: the help and a wrong value are told at once. No postponed annotations: typer reads
them.
"""

import math
from pathlib import Path
from typing import Annotated

import typer

from ..config import limits
from ..errors import UserError, cut, shown

MOST_SEED = 2**32 - 1


def finite(value: float | None) -> float | None:
    """Refuse NaN, which a range of typer lets through."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"must be a finite number: got {value}.")
    return value


Batch = Annotated[int, typer.Option(help="Inputs at a time.", min=1, max=limits.BATCH)]
Threads = Annotated[int, typer.Option(help="Threads to compute with.", min=1, max=limits.THREADS)]
Seed = Annotated[int, typer.Option(help="Seed of weights and inputs.", min=0, max=MOST_SEED)]
Out = Annotated[Path, typer.Option(help="Where records are appended, as JSON lines.")]
Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="A YAML file, or the name of a shipped one (`linformer configs`)."
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="For example train.steps=100.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
OnOverflow = Annotated[
    str | None,
    typer.Option(
        help="For texts longer than the model reads: error, truncate, chunk or extend (by default "
        "as the run treats its data)."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Remove an existing run of the same name first.")
]


def whole_numbers(option: str, text: str, *, most: int = limits.LENGTH) -> tuple[int, ...]:
    """The numbers of an option with commas between them: each from 1 to `most`, none twice."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--{option} takes whole numbers with commas between them: got {cut(text)!r}."
        ) from None
    for number in found:
        if not 1 <= number <= most:
            raise UserError(f"--{option} takes numbers from 1 to {most:,}: got {shown(number)}.")
    _check_different(option, found)
    return found


def names(option: str, text: str) -> tuple[str, ...]:
    """The names of an option with commas between them, none twice."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise UserError(f"--{option} takes names with commas between them: got {cut(text)!r}.")
    _check_different(option, found)
    return found


def _check_different(option: str, found: tuple[object, ...]) -> None:
    seen = set()
    for value in found:
        if value in seen:
            raise UserError(f"--{option} has {cut(str(value))} twice. Give each value once.")
        seen.add(value)
