"""Training runs as the report sees them: how they were set, how they went, how they ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..bench.records import Record, read_records


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, read from its folder."""

    name: str
    model: dict[str, Any]  # what the run's model was built with
    steps: list[Record]  # with "loss"
    validations: list[Record]  # with "validation"
    scores: dict[str, float]  # of the final evaluation
    machine: Record
    path: str = ""
    timed_step: float | None = None  # in a comparison, where the variants took turns
    problems: tuple[str, ...] = ()

    @property
    def projection(self) -> str:
        return str(self.model.get("projection", "linear"))

    @property
    def vanilla(self) -> bool:
        return self.projection == "full"

    @property
    def seconds_per_step(self) -> float | None:
        """Of a comparison, or the median of what was logged, so that a pause does not count."""
        if self.timed_step is not None:
            return self.timed_step
        times = sorted(s["seconds_per_step"] for s in self.steps if s.get("seconds_per_step"))
        return times[len(times) // 2] if times else None


def with_timed_steps(runs: list[Run], records: list[Record]) -> list[Run]:
    """The runs, with the time of a step from the records of `linformer compare`, if there are any.

    A run is known by its folder's name and that of the comparison: paths may have moved.
    """
    timed = {
        Path(record["run"]).parts[-2:]: record["step_seconds"]
        for record in records
        if "variant" in record and "run" in record and record.get("step_seconds")
    }
    return [replace(run, timed_step=timed.get(Path(run.path).parts[-2:])) for run in runs]


def is_run(folder: Path) -> bool:
    return (folder / "metrics.jsonl").is_file() and (
        (folder / "config.yaml").is_file() or (folder / "environment.json").is_file()
    )


def read_run(folder: Path) -> Run:
    """What is there; a run may be unfinished."""
    lines, problems = read_records(folder / "metrics.jsonl")
    evaluation, wrong = _json(folder / "evaluation.json")
    environment, also_wrong = _json(folder / "environment.json")
    metrics = evaluation.get("metrics", {})
    return Run(
        name=folder.name,
        path=str(folder),
        model=_model(folder),
        steps=[line for line in lines if isinstance(line.get("loss"), float)],
        validations=[line for line in lines if isinstance(line.get("validation"), dict)],
        scores={k: v for k, v in metrics.items() if isinstance(v, int | float)},
        machine=environment,
        problems=(*problems, *wrong, *also_wrong),
    )


def _model(folder: Path) -> dict[str, Any]:
    """From the saved model's own configuration, which is complete."""
    for which in ("best", "last"):
        found, _ = _json(folder / which / "config.json")
        if found:
            return found
    return {}


def _json(path: Path) -> tuple[dict[str, Any], list[str]]:
    if not path.is_file():
        return {}, []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return {}, [f"{path}: not JSON ({error}); left out"]
    return (found, []) if isinstance(found, dict) else ({}, [f"{path}: not an object; left out"])
