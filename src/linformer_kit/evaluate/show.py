"""Tables for people: an evaluation, and the list of runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from ..errors import UserError, reason_of
from ..metrics.tasks import MAIN_METRIC, numbers
from ..runs.folder import RunFolder
from ..runs.models import step_of


def show(evaluation: dict[str, Any]) -> Group:
    """All metrics, the confusion matrix and the signatures."""
    metrics = evaluation["metrics"]
    table = Table(title=f"{evaluation['model']} model on {evaluation['part']}")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in numbers(metrics).items():
        table.add_row(name, f"{value:.4f}")
    parts: list[Any] = [table]
    if "confusion" in metrics:
        names = evaluation["labels"]
        confusion = Table(title="confusion: a row is a label, a column a prediction")
        confusion.add_column("")
        for name in names:
            confusion.add_column(escape(name), justify="right")
        for name, row in zip(names, metrics["confusion"], strict=True):
            confusion.add_row(escape(name), *map(str, row))
        parts.append(confusion)
    if "sizes" in metrics:
        names = list(next(iter(metrics["sizes"].values())))
        sizes = Table("size", *names, title="by the first components of a vector alone")
        for size, one in metrics["sizes"].items():
            sizes.add_row(size, *(f"{one[name]:.4f}" for name in names))
        parts.append(sizes)
    if "types" in metrics:
        types = Table("type", *("precision", "recall", "f1", "spans"), title="spans of each type")
        for name, one in metrics["types"].items():
            shares = (f"{one[key]:.4f}" for key in ("precision", "recall", "f1"))
            types.add_row(escape(name), *shares, f"{one['spans']:,}")
        parts.append(types)
    for name, signature in metrics.get("signatures", {}).items():
        parts.append(f"{name}: {signature}")
    return Group(*parts)


def summaries(folder: Path) -> list[dict[str, Any]]:
    """Every run below a folder: its task, how far it is, and its scores.

    A folder that cannot be read is there with its `problem`.
    """
    found: dict[Path, dict[str, Any]] = {}

    def not_read(error: OSError) -> None:
        path = Path(error.filename)
        found[path] = {"run": str(path), "problem": f"cannot be read: {error.strerror}"}

    for name, _, files in os.walk(folder, onerror=not_read):
        if "config.yaml" in files:
            run = RunFolder(Path(name))
            try:
                summary = _summary(run)
            except (UserError, OSError) as error:
                summary = {"run": name, "problem": reason_of(error)}
            if summary is not None:
                found[run.path] = summary
    return [found[path] for path in sorted(found)]


def _summary(run: RunFolder) -> dict[str, Any] | None:
    """None if the folder is not that of a run."""
    if not run.checkpoints.is_dir():
        return None
    config = run.config()
    evaluation = run.evaluation()
    start = run.last_checkpoint()
    validation = [line["validation"] for line in run.metrics() if "validation" in line]
    scores = validation[-1] if validation else {}
    return {
        "run": str(run.path),
        "task": config.task,
        "steps": config.train.steps,
        "step": config.train.steps if evaluation else step_of(start) if start else 0,
        "finished": evaluation is not None,
        "part": evaluation["part"] if evaluation else "validation",
        "metrics": numbers(evaluation["metrics"]) if evaluation else scores,
    }


def runs_table(found: list[dict[str, Any]]) -> Table:
    table = Table()
    for name in ("run", "task", "steps", "scores"):
        table.add_column(name)
    for run in found:
        if "problem" in run:
            table.add_row(escape(run["run"]), "", "", escape(run["problem"]))
            continue
        main = MAIN_METRIC[run["task"]]
        order = sorted(run["metrics"], key=lambda name: (name != main, name))
        scores = "  ".join(f"{name} {run['metrics'][name]:.4g}" for name in order)
        steps = f"{run['steps']:,}" if run["finished"] else f"{run['step']:,} of {run['steps']:,}"
        table.add_row(
            escape(run["run"]), run["task"], steps, f"{scores} ({run['part']})" if scores else ""
        )
    return table
