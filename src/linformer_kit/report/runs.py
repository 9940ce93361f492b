"""Training runs as the report sees them: how they were set, how they went, how they ended."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compare.variants import is_vanilla
from ..config import yaml_text
from ..errors import reason_of
from ..measure.records import Record, read_records
from ..runs.models import MODELS

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        """What its attention is, in words."""
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
        """Of a comparison, or the median of what was logged, so that a pause does not count."""
        if self.timed_step is not None:
            return self.timed_step
        times = sorted(s["seconds_per_step"] for s in self.steps if s.get("seconds_per_step"))
        return times[len(times) // 2] if times else None


def with_comparisons(runs: Sequence[Run], records: Sequence[Record]) -> list[Run]:
    """The runs, with what the records of `linformer compare` say of them, if there are any.

    A run is known by its folder's name and that of the comparison: paths may have moved.
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
    """What is there; a run may be unfinished. What cannot be read is reported and left out."""
    problems: list[str] = []
    steps, validations = _logged(folder / "metrics.jsonl", problems)
    evaluation = _json(folder / "evaluation.json", problems)
    marker = _json(folder / "run.json", problems)
    changed = evaluation.get("data_changed") is True
    part = evaluation.get("part")
    return Run(
        name=folder.name,
        path=str(folder),
        model=_model(folder, problems),
        config={} if changed else _config(folder / "config.yaml", problems),
        data=marker.get("data"),
        steps=steps,
        validations=validations,
        scores=_scores(evaluation, folder / "evaluation.json", problems),
        part=part if isinstance(part, str) else None,
        machine=_json(folder / "environment.json", problems),
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
    """What of a mapping is a finite number."""
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
    steps: list[Record] = []
    validations: list[Record] = []
    left_out = 0
    for line in lines:
        plain = numbers(line)
        if "validation" in line:
            scores = numbers(line["validation"])
            if "step" in plain and scores:
                validations.append({"step": plain["step"], "validation": scores})
            else:
                left_out += 1
        elif "loss" in line:
            if "step" in plain and "loss" in plain:
                steps.append(plain)
            else:
                left_out += 1
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


def _model(folder: Path, problems: list[str]) -> dict[str, Any]:
    """From the saved model's own configuration, which is complete."""
    for which in MODELS:
        found = _json(folder / which / "config.json", problems)
        if found:
            return found
    return {}


def _config(path: Path, problems: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = yaml_text.parse(path.read_text(encoding="utf-8"))
    except Exception as error:  # whatever a damaged file leads to
        problems.append(f"{path}: not a configuration ({reason_of(error)}); left out")
        return {}
    if isinstance(found, dict):
        return found
    problems.append(f"{path}: not a configuration; left out")
    return {}


def _baseline(record: Record) -> Record | None:
    """As a comparison keeps it: {"metrics": {...}, "left": true or false}."""
    found = record.get("baseline")
    if not isinstance(found, dict) or not isinstance(found.get("left"), bool):
        return None
    return {"metrics": numbers(found.get("metrics")), "left": found["left"]}


def _json(path: Path, problems: list[str]) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path}: not JSON ({reason_of(error)}); left out")
        return {}
    if isinstance(found, dict):
        return found
    problems.append(f"{path}: not an object; left out")
    return {}
