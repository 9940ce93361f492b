"""`linformer bench growth`: how time and memory grow with the length, Linformer and full attention.

One encoder, inference. Memory is measured first, in a process of its own: what does not fit there
is not tried here. Full attention is skipped, in words, where it would take too long. A length that
has its records, of the same settings and machine, is not measured again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from ..core import checks
from ..measure.cells import identity
from ..measure.machine import describe
from ..measure.memory import PeakMemory, peak_memory
from ..measure.timing import Say, Timing, alternate, fixed_threads, positive_seconds, say_nothing
from .contestants import FULL, OURS, Point, build
from .step import make_input, make_step, small

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..measure.records import Record

BENCH = "growth"


@dataclass(frozen=True, kw_only=True)
class GrowthBench:
    """What to measure. `budget`: the most seconds one run of full attention may take."""

    points: tuple[Point, ...]
    full: bool = True
    rounds: int = 5
    threads: int = 2
    seed: int = 0
    budget: float = 20.0

    def __post_init__(self) -> None:
        checks.positive("rounds", self.rounds)
        checks.positive("threads", self.threads)
        positive_seconds("budget", self.budget)
        for point in self.points:
            point.check_fits()

    @property
    def contestants(self) -> tuple[str, ...]:
        return (FULL, OURS) if self.full else (OURS,)


def measured_already(bench: GrowthBench, records: Sequence[Record]) -> list[Record]:
    """Of these records, the last ones of every length that all contestants have a record of."""
    machine = describe(seed=bench.seed, threads=bench.threads)
    known = {
        _identity(record, record["machine"]): record
        for record in records
        if record.get("bench") == BENCH and isinstance(record.get("machine"), dict)
    }
    found = []
    for point in bench.points:
        wanted = [_identity(_settings(bench, name, point), machine) for name in bench.contestants]
        if all(one in known for one in wanted):
            found += [known[one] for one in wanted]
    return found


def measure(
    bench: GrowthBench, known: Sequence[Record] = (), *, say: Say = say_nothing
) -> Iterator[Record]:
    """The records, shortest length first, as they are measured; `known` are not made again."""
    machine = describe(seed=bench.seed, threads=bench.threads)
    last: tuple[int, float] | None = None  # what full attention took where it was last timed
    taken = {record["length"]: record["best"] for record in known if record["contestant"] == FULL}
    finished = {record["length"] for record in known}
    points = sorted(bench.points, key=lambda point: point.length)
    if all(point.length in finished for point in points):
        return
    _times(bench, bench.contestants, small(points[0]), say)  # so that all are warm
    for point in points:
        if point.length in finished:
            if (before := taken.get(point.length)) is not None:
                last = point.length, before
            continue

        def say_where(what: str, length: int = point.length) -> None:
            say(f"{length:,} tokens: {what}")

        skipped: dict[str, str] = {}
        estimate = None if last is None else last[1] * (point.length / last[0]) ** 2
        if bench.full and estimate is not None and estimate > bench.budget:
            skipped[FULL] = f"skipped: about {estimate:.0f} s"
        running = [name for name in bench.contestants if name not in skipped]
        memory = {}
        for name in running:
            say_where(f"{name}, memory")
            memory[name] = _memory(bench, name, point)
        fitting = [name for name in running if memory[name].problem is None]
        timings = _times(bench, fitting, point, say_where)
        if FULL in timings and (best := timings[FULL].best) is not None:
            last = point.length, best
        for name in bench.contestants:
            peak = memory.get(name, PeakMemory())
            timing = timings.get(name, Timing(()))
            yield {
                "bench": BENCH,
                **_settings(bench, name, point),
                "seconds": timing.seconds,
                "best": timing.best,
                "median": timing.median,
                "spread": timing.spread,
                "memory_work": peak.work,
                "memory_total": peak.total,
                "memory_method": peak.method,
                "note": skipped.get(name) or peak.problem or timing.note,
                "machine": machine,
            }


def _settings(bench: GrowthBench, name: str, point: Point) -> Record:
    """All that a record depends on besides the machine."""
    limits = {"rounds": bench.rounds, "budget": bench.budget}
    return {"contestant": name, **asdict(point), **limits}


def _identity(record: Record, machine: Record) -> str:
    names = ("contestant", *(field.name for field in fields(Point)), "rounds", "budget")
    return identity(BENCH, {name: record.get(name) for name in names}, machine)


def _memory(bench: GrowthBench, name: str, point: Point) -> PeakMemory:
    return peak_memory(
        "linformer_kit.bench.step:memory_of_step",
        {
            "contestant": name,
            "layer": "encoder",
            "mode": "inference",
            "dropout": 0.0,
            "seed": bench.seed,
            "threads": bench.threads,
            "point": asdict(point),
        },
        timeout=60.0 + 10 * bench.budget,
    )


def _times(bench: GrowthBench, names: Sequence[str], point: Point, say: Say) -> dict[str, Timing]:
    x = make_input(point, seed=bench.seed)
    runs = {
        name: make_step(build(name, "encoder", point, dropout=0.0, seed=bench.seed), x, "inference")
        for name in names
    }
    with fixed_threads(bench.threads):
        # What takes seconds has done the same at a shorter length before: it is warm.
        return alternate(runs, rounds=bench.rounds, fewest=0, count_first_over=1.0, say=say)
