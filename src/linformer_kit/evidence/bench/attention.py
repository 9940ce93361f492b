"""`linformer bench attention`: one layer against full attention and the earlier implementations.

A time cell is one point (sizes), kind of layer and mode: all implementations and a large matrix
product take turns. A memory cell is a training step of one implementation in a process of its own.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from ...core.cpu.allocator import keep_memory
from ...measure.cells import Cell, memory_cell
from ...measure.step import layer_step
from ...measure.timing import Say, Timing, alternate, fixed_threads, times_faster
from .gemm import gemm, gemm_flops, step_flops
from .implementations import (
    IMPLEMENTATIONS,
    KIT,
    MEMORY_OF_STEP,
    build,
    make_input,
    missing,
    rate_in,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...measure.records import Record
    from .catalog import AttentionSettings
    from .settings import Point

GEMM = "gemm"


def cells(settings: AttentionSettings) -> list[Cell]:
    kept = settings.keep_memory and keep_memory()
    found = []
    for point, layer, mode in product(settings.points, settings.layers, settings.modes):
        found.append(_time_cell(settings, point, layer, mode, kept))
        if settings.memory and mode != "inference":
            found += [_memory_cell(settings, point, layer, mode, one) for one in _present(settings)]
    return found


def notes(settings: AttentionSettings) -> list[str]:
    said = [f"{name} skipped: {reason}" for name, reason in _missing(settings).items()]
    if settings.keep_memory and not keep_memory():
        said.append("--keep-memory did nothing: it needs glibc, so Linux.")
    return said


def _missing(settings: AttentionSettings) -> dict[str, str]:
    return missing({name: IMPLEMENTATIONS[name].package for name in settings.models})


def _present(settings: AttentionSettings) -> list[str]:
    absent = _missing(settings)
    return [name for name in settings.models if name not in absent]


def _time_cell(
    settings: AttentionSettings, point: Point, layer: str, mode: str, kept: bool
) -> Cell:
    names = [*_present(settings), GEMM]
    rate = rate_in(mode, settings.dropout)

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        x = make_input(point, seed=settings.seed)
        models = {
            name: build(name, layer, point, dropout=rate, seed=settings.seed) for name in names[:-1]
        }
        runs = {name: layer_step(model, x, mode) for name, model in models.items()}
        runs[GEMM] = gemm(settings.gemm_size)
        with fixed_threads(settings.threads):
            timings = alternate(runs, rounds=settings.rounds, limit=settings.limit, say=say)
        flops = {name: step_flops(model, point, mode) for name, model in models.items()}
        flops[GEMM] = gemm_flops(settings.gemm_size)
        highest = _rate(flops[GEMM], timings[GEMM])
        results = []
        for name, timing in timings.items():
            own = _rate(flops[name], timing)
            results.append(
                {
                    **timing.as_record(),
                    "times_faster": times_faster(timings[KIT], timing),
                    "flops": flops[name],
                    "flops_per_second": own,
                    "share_of_gemm": own / highest if own and highest else None,
                }
            )
        return results

    return Cell(
        name=f"{layer}, {mode}, n {point.length}, k {point.k}",
        settings={
            "what": "time",
            "layer": layer,
            "mode": mode,
            **point.as_record(),
            "dropout": rate,
            "rounds": settings.rounds,
            "keep_memory": kept,
        },
        variants=[{"model": name} for name in names],
        work=point.length * (1.0 if mode == "inference" else 3.0),
        run=run,
    )


def _memory_cell(
    settings: AttentionSettings, point: Point, layer: str, mode: str, model: str
) -> Cell:
    own = {"model": model, "layer": layer, "mode": mode}
    common = {"seed": settings.seed, "threads": settings.threads, "dropout": settings.dropout}
    return memory_cell(
        f"{layer}, {mode}, n {point.length}, k {point.k}, {model}",
        {**own, **point.as_record(), "dropout": rate_in(mode, settings.dropout)},
        MEMORY_OF_STEP,
        {**own, **common, "point": point.as_record()},
        work=point.length,
    )


def _rate(flops: int | None, timing: Timing) -> float | None:
    return flops / timing.best if flops and timing.best else None
