"""`linformer bench growth`: how time and memory grow with the length, Linformer and full attention.

One encoder, inference. Memory is measured first, in a process of its own: what does not fit there
is not tried here. Full attention is skipped, in words, where it would take too long.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ..core import checks
from .contestants import FULL, OURS, Point, build
from .machine import describe
from .memory import PeakMemory, peak_memory
from .step import make_input, make_step, small
from .timing import Say, Timing, alternate, fixed_threads, positive_seconds, say_nothing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .records import Record


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

    @property
    def contestants(self) -> tuple[str, ...]:
        return (FULL, OURS) if self.full else (OURS,)


def measure(bench: GrowthBench, *, say: Say = say_nothing) -> Iterator[Record]:
    """The records, shortest length first, as they are measured."""
    machine = describe(seed=bench.seed, threads=bench.threads)
    last: tuple[Point, float] | None = None  # what full attention took where it was last timed
    points = sorted(bench.points, key=lambda point: point.length)
    _times(bench, bench.contestants, small(points[0]), say)  # so that all are warm
    for point in points:

        def say_where(what: str, length: int = point.length) -> None:
            say(f"{length:,} tokens: {what}")

        skipped: dict[str, str] = {}
        estimate = None if last is None else last[1] * (point.length / last[0].length) ** 2
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
            last = point, best
        for name in bench.contestants:
            peak = memory.get(name, PeakMemory())
            timing = timings.get(name, Timing(()))
            yield {
                "bench": "growth",
                "contestant": name,
                **asdict(point),
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
