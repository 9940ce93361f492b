"""The table and figures of training runs, made of what they logged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..figures.figure import OTHERS, OURS, VANILLA, Axis, Chart, Line
from ..figures.sheet import Entry, Sheet
from ..measure import quantities
from ..measure.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .runs import Run

# Scores of a run, the best known first.
SCORES = ("perplexity", "bits_per_byte", "bleu", "accuracy", "macro_f1", "loss")


def name_of(run: Run) -> str:
    beside = f", neighbours {run.model['neighbours']}" if run.model.get("neighbours") else ""
    return f"{run.name} ({run.kind}{beside})"


def figures(runs: Sequence[Run]) -> list[Chart]:
    found = []
    for name, title, field, unit in (
        ("runs-loss", "Training loss over steps", "step", "step"),
        ("runs-loss-time", "Training loss over time", "seconds", "minutes"),
    ):
        lines = []
        for number, run in enumerate(runs):
            scale = 60.0 if field == "seconds" else 1.0
            points = [(s[field] / scale, s["loss"]) for s in run.steps if field in s]
            if points:
                lines.append(
                    Line(
                        name=name_of(run),
                        x=tuple(x for x, _ in points),
                        y=tuple(y for _, y in points),
                        colour=_colour(number, runs),
                        dash="dash" if run.vanilla else "solid",
                        marked=False,
                    )
                )
        if lines:
            found.append(
                Chart(
                    name=name,
                    title=title,
                    caption=_caption(runs),
                    x=Axis(title=unit),
                    y=Axis(title="loss"),
                    lines=tuple(lines),
                )
            )
    validation = _validation(runs)
    return [*found, *([] if validation is None else [validation])]


def sheet(runs: Sequence[Run]) -> Sheet:
    scores = [name for name in SCORES if any(name in run.scores for run in runs)]
    rows = []
    for run in runs:
        rows.append(
            (
                Entry(name_of(run)),
                Entry(f"{run.model.get('max_position_embeddings', '-')}"),
                Entry(quantities.seconds(run.seconds_per_step)),
                *(
                    Entry(f"{run.scores[name]:.4g}" if name in run.scores else "-")
                    for name in scores
                ),
            )
        )
    return Sheet(
        title="Training runs",
        columns=("run", "n", "time a step", *(name.replace("_", " ") for name in scores)),
        rows=tuple(rows),
        caption=_caption(runs),
    )


def _validation(runs: Sequence[Run]) -> Chart | None:
    logged = [run for run in runs if run.validations]
    if not logged:
        return None
    score = next(
        (name for name in SCORES if any(name in v["validation"] for v in logged[0].validations)),
        None,
    )
    if score is None:
        return None
    lines = []
    for number, run in enumerate(runs):
        points = [
            (v["step"], v["validation"][score]) for v in run.validations if score in v["validation"]
        ]
        if points:
            lines.append(
                Line(
                    name=name_of(run),
                    x=tuple(float(x) for x, _ in points),
                    y=tuple(float(y) for _, y in points),
                    colour=_colour(number, runs),
                    dash="dash" if run.vanilla else "solid",
                )
            )
    return Chart(
        name="runs-validation",
        title=f"Validation {score.replace('_', ' ')} over steps",
        caption=_caption(runs),
        x=Axis(title="step"),
        y=Axis(title=score.replace("_", " "), scale="log" if score == "perplexity" else "linear"),
        lines=tuple(lines),
    )


def _colour(number: int, runs: Sequence[Run]) -> str:
    if runs[number].vanilla:
        earlier = sum(run.vanilla for run in runs[:number])
        return VANILLA if earlier == 0 else OTHERS[earlier % len(OTHERS)]
    return OURS[sum(not run.vanilla for run in runs[:number]) % len(OURS)]


def _caption(runs: Sequence[Run]) -> str:
    return provenance([{"machine": run.machine} for run in runs if run.machine])
