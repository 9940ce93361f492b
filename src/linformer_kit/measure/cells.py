"""Long measurements in cells: each is measured once, and kept as soon as it is.

A record of a cell is one line: the benchmark, the cell's settings, its results and the machine. A
cell is finished when a record has the same settings from the same processor, number of threads,
seed and torch; run again, a benchmark measures what is left.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .timing import Say, say_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .records import Record

Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One piece of a benchmark.

    settings: all that the results depend on besides the machine; plain JSON values.
    work: about how much there is to do, in any unit; for the time left.
    run: measures, telling what it is at, and returns the results.
    """

    name: str
    settings: Settings
    work: float
    run: Callable[[Say], list[Record]]


def left_to_measure(
    bench: str, cells: Sequence[Cell], records: Sequence[Record], machine: Record
) -> list[Cell]:
    """The cells without a record."""
    finished = {
        identity(record["bench"], record["cell"], record["machine"])
        for record in records
        if isinstance(record.get("cell"), dict) and isinstance(record.get("machine"), dict)
    }
    return [cell for cell in cells if identity(bench, cell.settings, machine) not in finished]


def measure_cells(
    bench: str, cells: Sequence[Cell], *, machine: Record, say: Say = say_nothing
) -> Iterator[Record]:
    """The records of the cells, one after the other as they are measured."""
    clock = Remaining([cell.work for cell in cells])
    for number, cell in enumerate(cells, start=1):
        head = f"{number} of {len(cells)}{clock.in_words()}: {cell.name}"

        def say_where(what: str, head: str = head) -> None:
            say(f"{head}: {what}")

        say_where("starting")
        results = cell.run(say_where)
        clock.finish_one()
        yield {"bench": bench, "cell": cell.settings, "results": results, "machine": machine}


class Remaining:
    """How long the rest will take, judged by the work done so far."""

    def __init__(self, work: Sequence[float], now: Callable[[], float] = time.monotonic) -> None:
        self._work = list(work)
        self._done = 0
        self._now = now
        self._start = now()

    def finish_one(self) -> None:
        self._done += 1

    def seconds(self) -> float | None:
        done, left = sum(self._work[: self._done]), sum(self._work[self._done :])
        if not done:
            return None
        return (self._now() - self._start) * left / done

    def in_words(self) -> str:
        left = self.seconds()
        if left is None:
            return ""
        if left < 90:
            return f" (about {max(1, round(left))} s left)"
        return f" (about {round(left / 60)} min left)"


def latest(records: Sequence[Record], bench: str) -> list[Record]:
    """The last record of each cell of a benchmark: what was measured again replaces the old."""
    chosen: dict[str, Record] = {}
    for record in records:
        if record.get("bench") == bench and isinstance(record.get("cell"), dict):
            key = json.dumps(record["cell"], sort_keys=True)
            chosen.pop(key, None)
            chosen[key] = record
    return list(chosen.values())


def identity(bench: str, settings: Settings, machine: Record) -> str:
    """Equal where a measurement need not be made again."""
    on = [machine.get(name) for name in ("cpu", "threads", "torch", "seed")]
    return json.dumps([bench, settings, on], sort_keys=True)
