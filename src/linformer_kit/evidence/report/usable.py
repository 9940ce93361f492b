"""Filter out records that cannot be shown: damaged, or from another version.

The views read records as the measurements write them. Where a view fails, each record is tried
alone; those that fail are reported and left out. If the rest still fails together, the records of
the kinds that fail are left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import reason_of
from .collect import Evidence
from .sections import answer, highlights, sections

if TYPE_CHECKING:
    from ...measure.records import Record


def usable(evidence: Evidence) -> Evidence:
    """The evidence without what cannot be shown, which is added to `problems`."""
    if _failure(evidence) is None:
        return evidence
    problems: Counter[str] = Counter()
    kinds: dict[str, list[Record]] = {}
    for record in evidence.records:
        kind = _kind(record)
        if (error := _failure(Evidence(records=[record]))) is None:
            kinds.setdefault(kind, []).append(record)
        else:
            where = evidence.files.get(id(record), "a record")
            problems[f"{where}: a record of {kind} is damaged ({reason_of(error)})"] += 1
    records: list[Record] = []
    for kind, these in kinds.items():
        if (error := _failure(Evidence(records=these))) is None:
            records += these
        else:
            problem = f"the records of {kind} do not fit together ({reason_of(error)})"
            problems[problem] = len(these)
    runs = []
    for run in evidence.runs:
        if (error := _failure(Evidence(runs=[run]))) is None:
            runs.append(run)
        else:
            problems[f"{run.path}: the run is damaged ({reason_of(error)})"] += 1
    if (error := _failure(Evidence(runs=runs))) is not None:
        problems[f"the runs cannot be shown together ({reason_of(error)})"] += 1
        runs = []
    told = [
        f"{problem}; left out" + (f" ({count} times)" if count > 1 else "")
        for problem, count in problems.items()
    ]
    if not records and not runs:
        raise ValueError(f"there is nothing to report: {told[0]}.")
    return replace(evidence, records=records, runs=runs, problems=[*evidence.problems, *told])


def _failure(evidence: Evidence) -> Exception | None:
    """What is raised when this evidence is shown."""
    try:
        sections(evidence), answer(evidence), highlights(evidence)
    except Exception as error:  # whatever a damaged record leads to
        return error
    return None


def _kind(record: Record) -> str:
    kind = record.get("bench") or record.get("kind") or ("compare" if "variant" in record else "?")
    return str(kind)[:40]
