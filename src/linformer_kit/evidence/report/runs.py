"""Training runs as the report reads them: configuration, log and final evaluation."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import yaml_text
from ...errors import reason_of
from ...measure.records import Record, read_records
from ...runs.models import MODELS
from .verdict import is_vanilla

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
    config: dict[str, Any] = field(default_factory=dict)  # config.yaml; empty if it is not known
    data: Any = None  # the digest of the data that the run was trained on
    part: str | None = None  # what the final evaluation scored
    baseline: Record | None = None  # of a comparison: its metrics, and whether the run has left it
    timed_step: float | None = None  # in a comparison, where the variants took turns
    problems: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        if self.model.get("is_encoder_decoder"):
            return "translate"
        known = "clm" if self.model.get("is_decoder") else "mlm"
        return str(self.config.get("task", known))

    @property
    def vanilla(self) -> bool:
        return is_vanilla(self.task, self.model)

    @property
    def kind(self) -> str:
        """A description of its attention."""
        if self.vanilla:
            return "vanilla"
        if self.task == "clm":
            slots, window = self.model.get("num_slots"), self.model.get("window")
            return f"Linformer, {slots} slots, window {window}"
        window = f", window {self.model['window']}" if self.model.get("window") else ""
        projection, k = self.model.get("projection", "linear"), self.model.get("k")
        return f"Linformer, {projection}, k = {k}{window}"

    @property
    def seconds_per_step(self) -> float | None:
        """From a comparison, else the median of the logged times, which ignores pauses."""
        if self.timed_step is not None:
            return self.timed_step
        times = sorted(s["seconds_per_step"] for s in self.steps if s.get("seconds_per_step"))
        return times[len(times) // 2] if times else None


def with_comparisons(runs: Sequence[Run], records: Sequence[Record]) -> list[Run]:
    """Add step times and baselines from the records of `linformer compare`, if there are any.

    A run is identified by its folder's name and the comparison's, since paths may have moved.
    """
    known = {
        Path(record["run"]).parts[-2:]: record
        for record in records
        if isinstance(record.get("variant"), str) and isinstance(record.get("run"), str)
    }
    found = []
    for run in runs:
        record = known.get(Path(run.path).parts[-2:], {})
        seconds = number(record.get("step_seconds"))
        found.append(replace(run, timed_step=seconds or None, baseline=_baseline(record)))
    return found


def is_run(folder: Path) -> bool:
    return (folder / "metrics.jsonl").is_file() and (
        (folder / "config.yaml").is_file() or (folder / "environment.json").is_file()
    )


def read_run(folder: Path) -> Run:
    """Read a run, finished or not. What cannot be read is reported and left out."""
    problems: list[str] = []
    steps, validations = _logged(folder / "metrics.jsonl", problems)
    evaluation = _mapping(folder / "evaluation.json", problems)
    marker = _mapping(folder / "run.json", problems)
    changed = evaluation.get("data_changed") is True
    part = evaluation.get("part")
    return Run(
        name=folder.name,
        path=str(folder),
        # The saved model's own configuration, which is complete.
        model=next(
            filter(None, (_mapping(folder / w / "config.json", problems) for w in MODELS)), {}
        ),
        config={} if changed else _mapping(folder / "config.yaml", problems, yaml_text.parse),
        data=marker.get("data"),
        steps=steps,
        validations=validations,
        scores=_scores(evaluation, folder / "evaluation.json", problems),
        part=part if isinstance(part, str) else None,
        machine=_mapping(folder / "environment.json", problems),
        problems=tuple(problems),
    )


def number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def numbers(values: object) -> dict[str, float]:
    """The finite numbers in a mapping."""
    if not isinstance(values, dict):
        return {}
    return {name: found for name, value in values.items() if (found := number(value)) is not None}


def _logged(path: Path, problems: list[str]) -> tuple[list[Record], list[Record]]:
    """The steps with a loss, and the validations."""
    try:
        lines, wrong = read_records(path)
    except OSError as error:
        problems.append(f"{path}: cannot be read ({reason_of(error)}); left out")
        return [], []
    problems += shortened(wrong)
    logged = [line for line in lines if "validation" in line or "loss" in line]
    steps: list[Record] = []
    validations: list[Record] = []
    for line in logged:
        plain, scores = numbers(line), numbers(line.get("validation"))
        if "step" in plain and scores:
            validations.append({"step": plain["step"], "validation": scores})
        elif "step" in plain and "loss" in plain and "validation" not in line:
            steps.append(plain)
    left_out = len(logged) - len(steps) - len(validations)
    if left_out:
        problems.append(
            f"{path}: {left_out} of {len(lines)} lines have no finite step and loss or score; "
            "left out"
        )
    return steps, validations


def shortened(problems: Sequence[str], most: int = 3) -> list[str]:
    """The first of many problems of one file, and how many more there are."""
    if len(problems) <= most:
        return list(problems)
    return [*problems[:most], f"{problems[0].partition(',')[0]}: {len(problems) - most} more lines"]


def _scores(evaluation: Record, path: Path, problems: list[str]) -> dict[str, float]:
    metrics = evaluation.get("metrics", {})
    if not isinstance(metrics, dict):
        problems.append(f"{path}: its metrics are not an object; left out")
        return {}
    found = numbers(metrics)
    wrong = [
        name
        for name, value in metrics.items()
        if name not in found and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if wrong:
        problems.append(f"{path}: {', '.join(wrong)} is not a finite number; left out")
    return found


def _baseline(record: Record) -> Record | None:
    """As in the records of a comparison: {"metrics": {...}, "left": true or false}."""
    found = record.get("baseline")
    if not isinstance(found, dict) or not isinstance(found.get("left"), bool):
        return None
    return {"metrics": numbers(found.get("metrics")), "left": found["left"]}


def _mapping(path: Path, problems: list[str], parse: Callable[[str], Any] = json.loads) -> Record:
    """A file that holds a mapping, JSON or YAML; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        found = parse(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
        reason = f"it holds {type(found).__name__}, not a mapping"
    except Exception as error:  # whatever a damaged file leads to
        reason = reason_of(error)
    problems.append(f"{path}: cannot be read ({reason}); left out")
    return {}
