"""`linformer bench peers`: this package against every installable encoder for long inputs.

A time cell is one length and mode: all peers take turns. A memory cell is a training step of one
peer in a process of its own. Where the weights can be copied, an equality cell holds the largest
difference between the outputs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import torch

from ..core import checks
from ..measure.cells import Cell
from ..measure.memory import Work, peak_memory
from ..measure.timing import alternate, fixed_threads, positive_seconds, times_faster
from .contestants import Point
from .names import What
from .peer_equality import COPIES, largest_difference
from .peer_models import OURS, PEERS, build, why_missing
from .step import make_input, make_step, small

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..measure.records import Record
    from ..measure.timing import Say
    from .names import Mode

BENCH = "peers"
MODES: tuple[Mode, ...] = ("inference", "training")


@dataclass(frozen=True, kw_only=True)
class PeersBench:
    """What to measure. `limit`: a peer of which one run takes more seconds is left out."""

    points: tuple[Point, ...]
    peers: tuple[str, ...] = tuple(PEERS)
    what: tuple[What, ...] = get_args(What)
    rounds: int = 5
    threads: int = 2
    seed: int = 0
    limit: float = 60.0

    def __post_init__(self) -> None:
        checks.positive("rounds", self.rounds)
        checks.positive("threads", self.threads)
        positive_seconds("limit", self.limit)
        for point in self.points:
            point.check_fits()
        for name in self.peers:
            checks.one_of("peer", name, tuple(PEERS))
        for what in self.what:
            checks.one_of("what", what, get_args(What))
        if OURS not in self.peers:
            raise ValueError(
                f"the others are compared with {OURS!r}, so it must take part: "
                f"got {', '.join(self.peers)}."
            )

    @property
    def present(self) -> tuple[str, ...]:
        return tuple(name for name in self.peers if why_missing(name) is None)

    @property
    def missing(self) -> dict[str, str]:
        reasons = {name: why_missing(name) for name in self.peers}
        return {name: reason for name, reason in reasons.items() if reason is not None}


def cells(bench: PeersBench) -> list[Cell]:
    found = []
    if "equality" in bench.what:
        found += [_equality_cell(bench, name) for name in bench.present if name in COPIES]
    for point in bench.points:
        if "time" in bench.what:
            found += [_time_cell(bench, point, mode) for mode in MODES]
        if "memory" in bench.what:
            found += [_memory_cell(bench, point, name) for name in bench.present]
    return found


def _equality_cell(bench: PeersBench, name: str) -> Cell:
    """At a size where nothing takes time: equal weights are equal at any size."""
    point = Point(dim=64, num_heads=4, k=16, length=128, depth=2)

    def run(say: Say) -> list[Record]:
        say("comparing outputs")
        return [{"peer": name, "difference": largest_difference(name, point, seed=bench.seed)}]

    settings = {"what": "equality", "peer": name, **asdict(point)}
    return Cell(name=f"{name}, equality", settings=settings, work=1.0, run=run)


def _time_cell(bench: PeersBench, point: Point, mode: Mode) -> Cell:
    def run(say: Say) -> list[Record]:
        x = make_input(point, seed=bench.seed)
        runs = {
            name: make_step(build(name, point, seed=bench.seed), x, mode) for name in bench.present
        }
        with fixed_threads(bench.threads):
            timings = alternate(
                runs, rounds=bench.rounds, fewest=2, slow=0.5, limit=bench.limit, say=say
            )
        return [
            {
                "peer": name,
                **timing.as_record(),
                "ours_times_faster": times_faster(timings[OURS], timing),
                "note": timing.note,
            }
            for name, timing in timings.items()
        ]

    settings = {
        "what": "time",
        "mode": mode,
        **asdict(point),
        "peers": list(bench.present),
        "rounds": bench.rounds,
    }
    work = point.length * point.batch * (3.0 if mode == "training" else 1.0) / 20
    return Cell(name=f"n {point.length:,}, {mode}", settings=settings, work=work, run=run)


def _memory_cell(bench: PeersBench, point: Point, name: str) -> Cell:
    def run(say: Say) -> list[Record]:
        say("memory of a training step")
        peak = peak_memory(
            "linformer_kit.bench.peers:memory_of_peer",
            {
                "peer": name,
                "seed": bench.seed,
                "threads": bench.threads,
                "point": asdict(point),
            },
        )
        found = asdict(peak)
        return [{"peer": name, "note": found.pop("problem"), **found}]

    settings = {"what": "memory", "peer": name, **asdict(point)}
    return Cell(
        name=f"n {point.length:,}, {name}", settings=settings, work=100 + point.length / 40, run=run
    )


def memory_of_peer(*, peer: str, seed: int, threads: int, point: dict[str, Any]) -> Work:
    """For `memory.peak_memory`."""
    torch.set_num_threads(threads)

    def prepare(point: Point) -> Callable[[], object]:
        return make_step(build(peer, point, seed=seed), make_input(point, seed=seed), "training")

    whole = Point(**point)
    short = replace(small(whole), k=min(whole.k, 64))
    return Work(warm_up=lambda: prepare(short)(), prepare=lambda: prepare(whole))
