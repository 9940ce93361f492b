"""Compare with every installable encoder for long inputs: time, memory, equal outputs.

    python -m benchmarks.peers --quick

A time cell is one length and mode: all peers take turns. A memory cell is a training step of one
peer in a process of its own. Where the weights can be copied, an equality cell records the largest
difference between the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.peer_equality import COPIES, largest_difference
from benchmarks.peer_models import PEERS, build
from linformer_kit.cli.bench import main
from linformer_kit.evidence.bench import script_results as results
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import Benchmark
from linformer_kit.evidence.bench.implementations import KIT, make_input, missing, small
from linformer_kit.evidence.bench.settings import Point, Settings, check_includes
from linformer_kit.measure.cells import Cell, memory_cell
from linformer_kit.measure.memory import Work
from linformer_kit.measure.step import layer_step
from linformer_kit.measure.timing import Say, alternate, fixed_threads, times_faster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from linformer_kit.measure.records import Record

WHAT = ("equality", "time", "memory")


@dataclass(frozen=True, kw_only=True)
class PeersSettings(Settings):
    """At matched sizes."""

    lengths: tuple[int, ...] = options.lengths((512, 1024, 2048, 4096), quick=(512,))
    k: int = options.k(256, about="Projected length, landmarks, features, window.", quick=64)
    window: int = options.window()
    dim: int = options.dim(512, quick=64)
    heads: int = options.heads(8, quick=2)
    depth: int = options.depth(3, quick=1)
    batch: int = options.batch(1)
    peers: tuple[str, ...] = options.option(
        tuple(PEERS), "Encoders to compare, with commas.", choices=tuple(PEERS)
    )
    what: tuple[str, ...] = options.option(WHAT, "What to measure, with commas.", choices=WHAT)
    rounds: int = options.rounds(5, quick=2)
    threads: int = options.threads()
    limit: float = options.option(60.0, "Leave out a peer that takes more seconds a run.", above=0)

    def check(self) -> None:
        check_includes("peers", self.peers, KIT)
        super().check()

    @property
    def points(self) -> list[Point]:
        sizes = {"dim": self.dim, "num_heads": self.heads, "k": self.k, "depth": self.depth}
        sizes["window"] = self.window  # of Longformer too; without one it has k positions
        return [Point(length=length, batch=self.batch, **sizes) for length in self.lengths]


BENCHMARK = Benchmark(
    help="Compare with every installable encoder for long inputs: time, memory, equal outputs.",
    settings=PeersSettings,
    module="benchmarks.peers",
    results=results.PEERS,
)


def cells(settings: PeersSettings) -> list[Cell]:
    absent = _missing(settings)
    present = [name for name in settings.peers if name not in absent]
    found = []
    if "equality" in settings.what:
        found += [_equality_cell(settings, name) for name in present if name in COPIES]
    for point in settings.points:
        if "time" in settings.what:
            found += [
                _time_cell(settings, present, point, mode) for mode in ("inference", "training")
            ]
        if "memory" in settings.what:
            found += [_memory_cell(settings, point, name) for name in present]
    return found


def notes(settings: PeersSettings) -> list[str]:
    return [f"{name} skipped: {reason}" for name, reason in _missing(settings).items()]


def _missing(settings: PeersSettings) -> dict[str, str]:
    return missing({name: PEERS[name].package for name in settings.peers})


def _equality_cell(settings: PeersSettings, name: str) -> Cell:
    """At a small size: equal weights are equal at any size."""
    point = Point(dim=64, num_heads=4, k=16, length=128, depth=2)

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        say("comparing outputs")
        return [{"difference": largest_difference(name, point, seed=settings.seed)}]

    own = {"what": "equality", "model": name, **point.as_record()}
    return Cell(name=f"{name}, equality", settings=own, run=run)


def _time_cell(settings: PeersSettings, present: list[str], point: Point, mode: str) -> Cell:
    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        x = make_input(point, seed=settings.seed)
        runs = {
            name: layer_step(build(name, point, seed=settings.seed), x, mode) for name in present
        }
        with fixed_threads(settings.threads):
            timings = alternate(
                runs, rounds=settings.rounds, fewest=2, slow=0.5, limit=settings.limit, say=say
            )
        return [
            {**timing.as_record(), "times_faster": times_faster(timings[KIT], timing)}
            for timing in timings.values()
        ]

    return Cell(
        name=f"n {point.length:,}, {mode}",
        settings={
            "what": "time",
            "mode": mode,
            **point.as_record(),
            "peers": present,
            "rounds": settings.rounds,
        },
        variants=[{"model": name} for name in present],
        work=point.length * point.batch * (3.0 if mode == "training" else 1.0) / 20,
        run=run,
    )


def _memory_cell(settings: PeersSettings, point: Point, name: str) -> Cell:
    common = {"seed": settings.seed, "threads": settings.threads}
    return memory_cell(
        f"n {point.length:,}, {name}",
        {"mode": "training", "model": name, **point.as_record()},
        "benchmarks.peers:memory_of_peer",
        {"model": name, **common, "point": point.as_record()},
        work=100 + point.length / 40,
    )


def memory_of_peer(*, model: str, seed: int, threads: int, point: dict[str, Any]) -> Work:
    """For `peak_memory`."""
    torch.set_num_threads(threads)

    def prepare(point: Point) -> Callable[[], object]:
        return layer_step(build(model, point, seed=seed), make_input(point, seed=seed), "training")

    whole = Point(**point)
    short = replace(small(whole), k=min(whole.k, 64))
    return Work(warm_up=lambda: prepare(short)(), prepare=lambda: prepare(whole))


if __name__ == "__main__":
    main(BENCHMARK)
