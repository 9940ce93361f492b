"""What lies under the paths a user names: records, runs, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..bench.records import Record, read_records
from .runs import Run, is_run, read_run, with_timed_steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass
class Evidence:
    """Everything a report is made of."""

    records: list[Record] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def collect(paths: Sequence[Path]) -> Evidence:
    """Files of records (JSON lines), runs, and folders of both, however deep."""
    evidence = Evidence()
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"{path} does not exist. Give files of records, runs, or folders that hold them."
            )
        _take(path, evidence, seen)
    evidence.runs = with_timed_steps(evidence.runs, evidence.records)
    if not evidence.records and not evidence.runs:
        where = ", ".join(map(str, paths))
        said = f" {evidence.problems[0]}." if evidence.problems else ""
        raise ValueError(
            f"there is nothing to report in {where}.{said} Run `linformer bench grid --quick` "
            "first, or name the folder of a run."
        )
    return evidence


def _take(path: Path, evidence: Evidence, seen: set[Path]) -> None:
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    if path.is_dir():
        if is_run(path):
            run = read_run(path)
            evidence.runs.append(run)
            evidence.problems += run.problems
            return
        for inside in sorted(path.iterdir()):
            if (inside.is_dir() and not inside.name.startswith(".")) or inside.suffix == ".jsonl":
                _take(inside, evidence, seen)
    else:
        records, problems = read_records(path)
        evidence.records += records
        evidence.problems += problems
