"""`linformer bench growth`: how time and memory grow with the length, Linformer and full attention.

One encoder, inference; a cell is one length. Memory is measured first, in a process of its own:
what does not fit there is not timed here. Full attention is skipped, with a note, where it would
take too long, judged by the longest shorter length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...measure.cells import Cell, memory_result
from ...measure.step import layer_step
from ...measure.timing import Say, Timing, alternate, fixed_threads
from .implementations import FULL, KIT, MEMORY_OF_STEP, build, make_input, small

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...measure.records import Record
    from .catalog import GrowthSettings
    from .settings import Point


def cells(settings: GrowthSettings) -> list[Cell]:
    return [_cell(settings, point) for point in settings.points]


def _cell(settings: GrowthSettings, point: Point) -> Cell:
    sizes = point.as_record()
    names = [FULL, KIT] if settings.full else [KIT]

    def run(say: Say, earlier: Sequence[Record]) -> list[Record]:
        skipped = {FULL: _too_long(settings, point, earlier)} if settings.full else {}
        running = [name for name in names if not skipped.get(name)]
        memory = {}
        for name in running:
            say(f"{name}, memory")
            arguments = {
                "model": name, "layer": "encoder", "mode": "inference", "dropout": 0.0,
                "seed": settings.seed, "threads": settings.threads, "point": sizes,
            }  # fmt: skip
            timeout = 60 + 10 * settings.budget
            memory[name] = memory_result(MEMORY_OF_STEP, arguments, timeout=timeout)
        _times(settings, running, small(point), say)  # so that all are warm
        fitting = [name for name in running if memory[name]["note"] is None]
        timings = _times(settings, fitting, point, say)
        results = []
        for name in names:
            peak, timing = memory.get(name, {}), timings.get(name, Timing(()))
            results.append(
                {
                    **timing.as_record(),
                    **{f"memory_{one}": peak.get(one) for one in ("work", "total", "method")},
                    "note": skipped.get(name) or peak.get("note") or timing.note,
                }
            )
        return results

    return Cell(
        name=f"{point.length:,} tokens",
        settings={**sizes, "rounds": settings.rounds, "budget": settings.budget},
        variants=[{"model": name} for name in names],
        work=point.length,
        run=run,
    )


def _too_long(settings: GrowthSettings, point: Point, earlier: Sequence[Record]) -> str | None:
    """Why full attention is skipped: its time grows with the square of the length."""
    sizes = {name: size for name, size in point.as_record().items() if name != "length"}
    timed = {
        record["length"]: record["best"]
        for record in earlier
        if (record.get("model"), record.get("length", 0) < point.length) == (FULL, True)
        and record.get("best") is not None
        and all(record.get(name) == size for name, size in sizes.items())
        and record["machine"].get("threads") == settings.threads
    }
    if not timed:
        return None
    longest = max(timed)
    estimate = timed[longest] * (point.length / longest) ** 2
    return f"skipped: about {estimate:.0f} s" if estimate > settings.budget else None


def _times(
    settings: GrowthSettings, names: Sequence[str], point: Point, say: Say
) -> dict[str, Timing]:
    x = make_input(point, seed=settings.seed)
    runs = {
        name: layer_step(
            build(name, "encoder", point, dropout=0.0, seed=settings.seed), x, "inference"
        )
        for name in names
    }
    with fixed_threads(settings.threads):
        # What takes seconds has done the same at a shorter length before: it is warm.
        return alternate(runs, rounds=settings.rounds, fewest=0, count_first_over=1.0, say=say)
