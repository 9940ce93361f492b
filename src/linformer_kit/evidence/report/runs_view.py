"""The table and figures of training runs, made of what they logged."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

from ...measure import quantities
from ...measure.provenance import provenance
from ..figures.figure import OTHERS, OURS, VANILLA, Axis, Chart, Line
from ..figures.sheet import Sheet, entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...measure.records import Record
    from ..figures.figure import Dash
    from .runs import Run

# Scores of a run, the best known first.
SCORES = ("perplexity", "bits_per_byte", "bleu", "f1", "ndcg@10", "accuracy", "macro_f1", "loss")


def name_of(run: Run) -> str:
    beside = f", neighbours {run.model['neighbours']}" if run.model.get("neighbours") else ""
    if run.model.get("moving_average"):
        beside += ", moving average"
    return f"{run.name} ({run.kind}{beside})"


def figures(runs: Sequence[Run]) -> list[Chart]:
    """The loss over steps and over time, and the validation score over steps.

    The time is the steps times the time of a step where all were timed in turn: what was logged
    depends on what else the machine did during one of the trainings.
    """
    loss = Axis(title="loss")
    steps = [[(s["step"], s["loss"]) for s in run.steps] for run in runs]
    timed = all(run.timed_step is not None for run in runs)
    times = [
        [
            (minutes, s["loss"])
            for s in run.steps
            if (minutes := _minutes(s, run.timed_step if timed else None)) is not None
        ]
        for run in runs
    ]
    found = [
        ("runs-loss", "Training loss over steps", "step", loss, steps),
        ("runs-loss-time", "Training loss over time", "minutes", loss, times),
    ]
    how = (
        "Minutes: steps times the time of a step, which was measured with all runs in turn."
        if timed
        else "Minutes as they were logged: other work on the machine counts too."
    )
    logged = [v["validation"] for run in runs for v in run.validations]
    score = next((name for name in SCORES if any(name in scores for scores in logged)), None)
    if score is not None:
        points = [
            [
                (v["step"], v["validation"][score])
                for v in run.validations
                if score in v["validation"]
            ]
            for run in runs
        ]
        title = score.replace("_", " ")
        y = Axis(title=title, scale="log" if score == "perplexity" else "linear")
        found.append(("runs-validation", f"Validation {title} over steps", "step", y, points))
    return [
        Chart(
            name=name,
            title=title,
            caption=how if name == "runs-loss-time" else "",
            machine=_machine(runs),
            x=Axis(title=unit),
            y=y,
            lines=tuple(_lines(runs, points, marked=name == "runs-validation")),
        )
        for name, title, unit, y, points in found
        if any(points)
    ]


def _lines(
    runs: Sequence[Run], points: Sequence[Sequence[tuple[float, float]]], *, marked: bool
) -> Iterator[Line]:
    """A line for each run that has points: vanilla dashed, each run in a colour of its own."""
    colours = {True: cycle((VANILLA, *OTHERS)), False: cycle(OURS)}
    for run, places in zip(runs, points, strict=True):
        colour = next(colours[run.vanilla])
        if places:
            x, y = zip(*places, strict=True)
            dash: Dash = "dash" if run.vanilla else "solid"
            yield Line(name=name_of(run), x=x, y=y, colour=colour, dash=dash, marked=marked)


def sheet(runs: Sequence[Run]) -> Sheet:
    scores = [name for name in SCORES if any(name in run.scores for run in runs)]
    rows = [
        entries(
            name_of(run),
            f"{run.model.get('max_position_embeddings', '-')}",
            quantities.seconds(run.seconds_per_step),
            *(f"{run.scores[name]:.4g}" if name in run.scores else "-" for name in scores),
        )
        for run in runs
    ]
    return Sheet(
        title="Training runs",
        columns=("run", "n", "time a step", *(name.replace("_", " ") for name in scores)),
        rows=tuple(rows),
        machine=_machine(runs),
    )


def _minutes(step: Record, timed: float | None) -> float | None:
    seconds = step.get("seconds") if timed is None else step["step"] * timed
    return None if seconds is None else float(seconds) / 60


def _machine(runs: Sequence[Run]) -> str:
    return provenance([{"machine": run.machine} for run in runs if run.machine])
