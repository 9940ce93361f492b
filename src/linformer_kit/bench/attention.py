"""`linformer bench attention`: one layer against full attention and the earlier implementations.

For every point (sizes), kind of layer and mode, all contestants and the yardstick of `gemm.py`
take turns; with `memory`, each also does one training step in a process of its own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, get_args

from ..core import checks
from ..core.cpu.allocator import keep_memory
from .contestants import CONTESTANTS, OURS, Point, build, why_missing
from .gemm import SIZE, gemm, gemm_flops, step_flops
from .machine import describe
from .memory import peak_memory
from .names import LayerKind, Mode
from .step import make_input, make_step, rate_in
from .timing import (
    Say,
    Timing,
    alternate,
    fixed_threads,
    positive_seconds,
    say_nothing,
    times_faster,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .records import Record

GEMM = "gemm"


@dataclass(frozen=True, kw_only=True)
class AttentionBench:
    """What to measure.

    rounds: for what takes up to a second; slower contestants have fewer, at least 3.
    limit: a contestant of which one run takes more seconds is left out, and said to be.
    gemm_size: rows and columns of the matrices of the yardstick.
    keep_memory: see `core/allocator.py`; for everybody who takes part, in this process.
    """

    points: tuple[Point, ...]
    layers: tuple[LayerKind, ...] = get_args(LayerKind)
    modes: tuple[Mode, ...] = get_args(Mode)
    contestants: tuple[str, ...] = tuple(CONTESTANTS)
    rounds: int = 10
    threads: int = 2
    dropout: float = 0.1
    seed: int = 0
    limit: float = 60.0
    gemm_size: int = SIZE
    memory: bool = False
    keep_memory: bool = False

    def __post_init__(self) -> None:
        checks.positive("rounds", self.rounds)
        checks.positive("threads", self.threads)
        checks.positive("gemm_size", self.gemm_size)
        checks.probability("dropout", self.dropout)
        positive_seconds("limit", self.limit)
        for point in self.points:
            point.check_fits()
        for layer in self.layers:
            checks.one_of("layer", layer, get_args(LayerKind))
        for mode in self.modes:
            checks.one_of("mode", mode, get_args(Mode))
        for name in self.contestants:
            checks.one_of("contestant", name, tuple(CONTESTANTS))
        if OURS not in self.contestants:
            raise ValueError(
                f"the others are compared with {OURS!r}, so it must take part: "
                f"got {', '.join(self.contestants)}."
            )

    @property
    def present(self) -> tuple[str, ...]:
        return tuple(name for name in self.contestants if why_missing(name) is None)

    @property
    def missing(self) -> dict[str, str]:
        """The contestants that cannot take part, with the reason and the remedy."""
        reasons = {name: why_missing(name) for name in self.contestants}
        return {name: reason for name, reason in reasons.items() if reason is not None}


def measure(bench: AttentionBench, *, say: Say = say_nothing) -> Iterator[Record]:
    """The records, one after the other as they are measured."""
    machine = describe(seed=bench.seed, threads=bench.threads)
    kept = bench.keep_memory and keep_memory()
    items = list(product(bench.points, bench.layers, bench.modes))
    for number, (point, layer, mode) in enumerate(items, start=1):
        head = f"{number} of {len(items)}: {layer}, {mode}, n {point.length}, k {point.k}"

        def say_where(what: str, head: str = head) -> None:
            say(f"{head}: {what}")

        common = {
            "layer": layer,
            "mode": mode,
            **asdict(point),
            "dropout": rate_in(mode, bench.dropout),
            "keep_memory": kept,
            "machine": machine,
        }
        for record in _times(bench, point, layer, mode, say_where):
            yield {"bench": "attention", **record, **common}
        if bench.memory and mode != "inference":
            for record in _memory(bench, point, layer, mode, say_where):  # in other processes
                yield {"bench": "attention memory", **record, **common, "keep_memory": False}


def _times(
    bench: AttentionBench, point: Point, layer: LayerKind, mode: Mode, say: Say
) -> Iterator[Record]:
    x = make_input(point, seed=bench.seed)
    rate = rate_in(mode, bench.dropout)
    models = {
        name: build(name, layer, point, dropout=rate, seed=bench.seed) for name in bench.present
    }
    runs = {name: make_step(model, x, mode) for name, model in models.items()}
    runs[GEMM] = gemm(bench.gemm_size)
    with fixed_threads(bench.threads):
        timings = alternate(runs, rounds=bench.rounds, limit=bench.limit, say=say)
    flops = {name: step_flops(model, point, mode) for name, model in models.items()}
    flops[GEMM] = gemm_flops(bench.gemm_size)
    highest = _rate(flops[GEMM], timings[GEMM])
    for name, timing in timings.items():
        rate_of_step = _rate(flops[name], timing)
        yield {
            "contestant": name,
            "rounds": bench.rounds,
            "seconds": timing.seconds,
            "best": timing.best,
            "median": timing.median,
            "spread": timing.spread,
            "note": timing.note,
            "ours_times_faster": times_faster(timings[OURS], timing),
            "flops": flops[name],
            "flops_per_second": rate_of_step,
            "share_of_gemm": rate_of_step / highest if rate_of_step and highest else None,
        }


def _rate(flops: int | None, timing: Timing) -> float | None:
    return flops / timing.best if flops and timing.best else None


def _memory(
    bench: AttentionBench, point: Point, layer: LayerKind, mode: Mode, say: Say
) -> Iterator[Record]:
    for name in bench.present:
        say(f"{name}, memory")
        peak = peak_memory(
            "linformer_kit.bench.step:memory_of_step",
            {
                "contestant": name,
                "layer": layer,
                "mode": mode,
                "dropout": bench.dropout,
                "seed": bench.seed,
                "threads": bench.threads,
                "point": asdict(point),
            },
        )
        yield {"contestant": name, **asdict(peak)}
