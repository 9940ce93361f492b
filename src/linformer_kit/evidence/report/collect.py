"""Find the records and runs below the given paths; report what cannot be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import reason_of
from ...measure.records import Record, read_records
from .runs import Run, is_run, read_run, shortened, with_comparisons

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass
class Evidence:
    """Everything a report is made of."""

    records: list[Record] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)  # of records, by their id()


def collect(paths: Sequence[Path]) -> Evidence:
    """Read files of records (JSON lines), runs, and folders of both, recursively."""
    evidence = Evidence()
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise ValueError(
                f"{path} does not exist. Give files of records, runs, or folders that hold them."
            )
        _add(path, evidence, seen)
    evidence.runs = with_comparisons(evidence.runs, evidence.records)
    if not evidence.records and not evidence.runs:
        where = ", ".join(map(str, paths))
        said = f" {evidence.problems[0]}." if evidence.problems else ""
        raise ValueError(
            f"there is nothing to report in {where}.{said} Run `linformer bench grid --quick` "
            "first, or name the folder of a run."
        )
    return evidence


def _add(path: Path, evidence: Evidence, seen: set[Path]) -> None:
    """Add one path. What cannot be read is reported and skipped."""
    try:
        real = path.resolve()
        if real in seen:
            return
        seen.add(real)
        if path.is_dir():
            _add_folder(path, evidence, seen)
        elif path.is_file():
            _add_records(path, evidence)
        else:  # a pipe or a device: reading it may never end
            evidence.problems.append(f"{path}: not a regular file; left out")
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        evidence.problems.append(f"{path}: cannot be read ({reason_of(error)}); left out")


def _add_folder(path: Path, evidence: Evidence, seen: set[Path]) -> None:
    if is_run(path):
        run = read_run(path)
        evidence.runs.append(run)
        evidence.problems += run.problems
        return
    for inside in sorted(path.iterdir()):
        hidden = inside.name.startswith(".")
        if (inside.is_dir() and not hidden) or (inside.suffix == ".jsonl" and not hidden):
            _add(inside, evidence, seen)


def _add_records(path: Path, evidence: Evidence) -> None:
    records, problems = read_records(path)
    evidence.records += records
    evidence.files |= {id(record): str(path) for record in records}
    evidence.problems += shortened(problems)
