"""Leaves out records that cannot be shown: damaged ones, or ones of another version.

The views read records as the measurements write them. Where a view fails, each record is tried
alone; those that fail are reported and left out. If the rest still fails together, the records of
the kinds that fail are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import reason_of
from .collect import Evidence
from .sections import answer, highlights, sections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..measure.records import Record
    from .runs import Run


def usable(evidence: Evidence) -> Evidence:
    """The evidence without what cannot be shown; `problems` says what that is."""
    if _failure(evidence) is None:
        return evidence
    problems: dict[str, int] = {}
    records = []
    for record in evidence.records:
        error = _failure(Evidence(records=[record]))
        if error is None:
            records.append(record)
        else:
            where = evidence.files.get(id(record), "a record")
            problem = f"{where}: a record of {_kind(record)} is damaged ({reason_of(error)})"
            problems[problem] = problems.get(problem, 0) + 1
    runs = []
    for run in evidence.runs:
        error = _failure(Evidence(runs=[run]))
        if error is None:
            runs.append(run)
        else:
            problems[f"{run.path}: the run is damaged ({reason_of(error)})"] = 1
    records, runs = _together(records, runs, problems)
    told = [
        f"{problem}; left out" + (f" ({count} times)" if count > 1 else "")
        for problem, count in problems.items()
    ]
    if not records and not runs:
        raise ValueError(f"there is nothing to report: {told[0]}.")
    return replace(evidence, records=records, runs=runs, problems=[*evidence.problems, *told])


def _together(
    records: list[Record], runs: list[Run], problems: dict[str, int]
) -> tuple[list[Record], list[Run]]:
    """What can be shown together, kind by kind."""
    kept: list[Record] = []
    for kind in dict.fromkeys(map(_kind, records)):
        these = [record for record in records if _kind(record) == kind]
        error = _failure(Evidence(records=these))
        if error is None:
            kept += these
        else:
            problems[f"the records of {kind} do not fit together ({reason_of(error)})"] = len(these)
    error = _failure(Evidence(runs=runs))
    if error is not None:
        problems[f"the runs cannot be shown together ({reason_of(error)})"] = 1
    return kept, runs if error is None else []


def _failure(evidence: Evidence) -> Exception | None:
    """What happens when this evidence is shown."""
    try:
        _use(sections(evidence))
        _use(answer(evidence))
        _use(highlights(evidence))
    except Exception as error:  # whatever a damaged record leads to
        return error
    return None


def _use(made: Iterable[object]) -> None:
    list(made)


def _kind(record: Record) -> str:
    kind = record.get("bench") or record.get("kind") or ("compare" if "variant" in record else "?")
    return str(kind)[:40]
