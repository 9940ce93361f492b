"""Long measurements in cells: each cell is measured once, and its records are written at once.

A record is flat: the benchmark, the settings of its cell, its variant, the results, the machine. A
cell measures one or more variants together; they take turns. It is finished when every variant has
a record with the same settings from the same processor, number of threads, seed and torch. Run
again, a benchmark measures the unfinished cells.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .memory import peak_memory
from .timing import Say, say_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .records import Record

Settings = dict[str, Any]
MISSING = object()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One piece of a benchmark.

    settings: all that the results depend on besides the machine; plain JSON values.
    variants: what distinguishes its records, in the order of the results.
    work: about how much there is to do, in any unit; for the remaining time.
    run: called with the progress function and the earlier records of this benchmark; returns a
        result for each variant.
    """

    name: str
    settings: Settings
    variants: Sequence[Settings] = ({},)
    work: float = 1.0
    run: Callable[[Say, Sequence[Record]], Sequence[Record]]

    def identities(self) -> list[Settings]:
        """What each of its records holds, as JSON has it: lists for tuples."""
        return [json.loads(json.dumps({**self.settings, **one})) for one in self.variants]


def unfinished(
    bench: str, cells: Sequence[Cell], records: Sequence[Record], machine: Record
) -> list[Cell]:
    """The cells that lack a record of this machine."""
    here = _identity(machine)
    known = [record for record in _of(bench, records) if _identity(record["machine"]) == here]
    return [
        cell
        for cell in cells
        if not all(any(_holds(record, one) for record in known) for one in cell.identities())
    ]


def records_of(bench: str, cells: Sequence[Cell], records: Sequence[Record]) -> list[Record]:
    """The records of these cells, from any machine."""
    wanted = [one for cell in cells for one in cell.identities()]
    return [record for record in _of(bench, records) if any(_holds(record, one) for one in wanted)]


def measure_cells(
    bench: str,
    cells: Sequence[Cell],
    *,
    machine: Record,
    earlier: Sequence[Record] = (),
    say: Say = say_nothing,
) -> Iterator[Record]:
    """The records of the cells, one after the other as they are measured."""
    known = _of(bench, earlier)
    work, start = [cell.work for cell in cells], time.monotonic()
    for number, cell in enumerate(cells):
        left = time_left(time.monotonic() - start, work, number)
        head = f"{number + 1} of {len(cells)}{left}: {cell.name}"

        def say_where(what: str, head: str = head) -> None:
            say(f"{head}: {what}")

        say_where("starting")
        results = cell.run(say_where, known)
        for identity, result in zip(cell.identities(), results, strict=True):
            record = {"bench": bench, **identity, **result, "machine": machine}
            known.append(record)
            yield record


def memory_result(target: str, arguments: dict[str, Any], *, timeout: float = 600.0) -> Record:
    """The peak memory of a piece of work as the fields of a record."""
    found = asdict(peak_memory(target, arguments, timeout=timeout))
    return {"note": found.pop("problem"), **found}


def memory_cell(
    name: str,
    settings: Record,
    target: str,
    arguments: dict[str, Any],
    *,
    work: float,
    timeout: float = 600.0,
    why_skipped: Callable[[], str | None] = lambda: None,
) -> Cell:
    """A cell with one record: the peak memory of `target`, in a process of its own."""

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        say("memory")
        if (reason := why_skipped()) is not None:
            return [{"work": None, "total": None, "note": reason}]
        return [memory_result(target, arguments, timeout=timeout)]

    return Cell(name=name, settings={"what": "memory", **settings}, work=work, run=run)


def time_left(elapsed: float, work: Sequence[float], done: int) -> str:
    """How long the rest takes in words, by the time of the first `done` pieces of work."""
    finished = sum(work[:done])
    if not finished:
        return ""
    left = elapsed * sum(work[done:]) / finished
    words = f"{max(1, round(left))} s" if left < 90 else f"{round(left / 60)} min"
    return f" (about {words} left)"


def _of(bench: str, records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.get("bench") == bench and isinstance(r.get("machine"), dict)]


def _holds(record: Record, key: Settings) -> bool:
    return all(record.get(name, MISSING) == value for name, value in key.items())


def _identity(machine: Record) -> list[Any]:
    """Equal where a measurement need not be made again."""
    return [machine.get(name) for name in ("cpu", "threads", "torch", "seed")]
