"""What share of the machine's GEMM rate each operation of a layer reaches.

    python -m benchmarks.roofline --quick

The operations of one Linformer encoder layer in inference, each at its sizes in the layer: those
after the projection on a block of rows. Two references take turns with them: a large matrix product
(the machine's highest rate) and a copy (its bandwidth). An operation of f FLOPs and b bytes can run
at most at min(GEMM rate, bandwidth * f / b): its roof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from linformer_kit.cli.bench import main
from linformer_kit.core.cpu.blocks import rows_in_block
from linformer_kit.evidence.bench import script_results as results
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import GEMM_SIZE, Benchmark
from linformer_kit.evidence.bench.gemm import gemm, gemm_flops, step_flops
from linformer_kit.evidence.bench.implementations import KIT, build, make_input
from linformer_kit.evidence.bench.settings import Point, Settings, check_memory
from linformer_kit.measure.cells import Cell
from linformer_kit.measure.step import layer_step
from linformer_kit.measure.timing import Say, alternate, fixed_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from linformer_kit.measure.records import Record

COPIED = 2**26  # floats: far beyond every cache
OPERATIONS = (
    "norm",
    "E X",
    "keys, values",
    "queries",
    "softmax(Q K) V",
    "output",
    "feed-forward 1",
    "gelu",
    "feed-forward 2",
    results.GEMM,
    results.COPY,
    results.LAYER,
)


@dataclass(frozen=True, kw_only=True)
class RooflineSettings(Settings):
    """One layer at each length."""

    lengths: tuple[int, ...] = options.lengths((4096,), quick=(1024,))
    k: int = options.k(256, quick=128)
    dim: int = options.dim(512, quick=128)
    heads: int = options.heads(8, quick=4)
    batch: int = options.batch(1)
    rounds: int = options.rounds(20, quick=3)
    threads: int = options.threads()
    gemm_size: int = options.size(
        GEMM_SIZE, about="Size of the matrix product.", quick=512, high=2**15
    )

    def check(self) -> None:
        check_memory(values=3 * self.gemm_size**2, gemm_size=self.gemm_size)
        super().check()

    @property
    def points(self) -> list[Point]:
        sizes = {"dim": self.dim, "num_heads": self.heads, "k": self.k, "batch": self.batch}
        return [Point(length=length, **sizes) for length in self.lengths]


BENCHMARK = Benchmark(
    help="The share of the machine's GEMM rate that each operation of a layer reaches.",
    settings=RooflineSettings,
    module="benchmarks.roofline",
    results=results.ROOFLINE,
)


@dataclass(frozen=True)
class Operation:
    """What is timed, its FLOPs, and the bytes it must read and write at least."""

    name: str
    run: Callable[[], object]
    flops: int
    bytes: int
    times: int = 1  # how often the layer does it


def cells(settings: RooflineSettings) -> list[Cell]:
    return [_cell(settings, point) for point in settings.points]


def operations(point: Point) -> list[Operation]:
    """N tokens, k rows, M channels, F hidden channels, r rows in a block."""
    n, k, m, f = point.batch * point.length, point.k, point.dim, point.ff_dim
    r = min(n, rows_in_block(f))
    blocks = -(-n // r)
    heads, size = point.num_heads, point.dim // point.num_heads
    x, rows, wide = torch.randn(n, m), torch.randn(r, m), torch.randn(r, f)
    activated = torch.empty_like(wide)
    shortened, e = torch.randn(k, m), torch.randn(k, point.length)
    w, w_pair = torch.randn(m, m), torch.randn(2 * m, m)
    w_1, w_2 = torch.randn(f, m), torch.randn(m, f)
    query = torch.randn(1, heads, r, size)
    key, value = torch.randn(1, heads, k, size), torch.randn(1, heads, k, size)
    gain = torch.ones(m)
    sequence = x[: point.length]
    return [
        Operation("norm", lambda: F.layer_norm(x, (m,), gain, gain), 8 * n * m, 8 * n * m),
        Operation(
            "E X",
            lambda: e @ sequence,
            2 * k * point.length * m,
            4 * (k * point.length + point.length * m + k * m),
            point.batch,
        ),
        Operation(
            "keys, values",
            lambda: F.linear(shortened, w_pair),
            4 * k * m * m,
            4 * (k * m + 2 * m * m + 2 * k * m),
            point.batch,
        ),
        Operation(
            "queries", lambda: F.linear(rows, w), 2 * r * m * m, 4 * (2 * r * m + m * m), blocks
        ),
        Operation(
            "softmax(Q K) V",
            lambda: F.scaled_dot_product_attention(query, key, value),
            4 * r * k * m,
            4 * (2 * r * m + 2 * k * m),
            blocks,
        ),
        Operation(
            "output", lambda: F.linear(rows, w), 2 * r * m * m, 4 * (2 * r * m + m * m), blocks
        ),
        Operation(
            "feed-forward 1",
            lambda: F.linear(rows, w_1),
            2 * r * m * f,
            4 * (r * m + m * f + r * f),
            blocks,
        ),
        Operation(
            "gelu",
            lambda: torch.ops.aten.gelu.out(wide, out=activated),
            8 * r * f,
            8 * r * f,
            blocks,
        ),
        Operation(
            "feed-forward 2",
            lambda: F.linear(wide, w_2),
            2 * r * m * f,
            4 * (r * m + m * f + r * f),
            blocks,
        ),
    ]


def references(point: Point, *, gemm_size: int, seed: int) -> list[Operation]:
    """A large product, a copy, and the whole layer."""
    source, target = torch.randn(COPIED), torch.empty(COPIED)
    model = build(KIT, "encoder", point, dropout=0.0, seed=seed)
    flops = step_flops(model, point, "inference")
    assert flops is not None
    step = layer_step(model, make_input(point, seed=seed), "inference")
    return [
        Operation(results.GEMM, gemm(gemm_size), gemm_flops(gemm_size), 0),
        Operation(results.COPY, lambda: target.copy_(source), 0, 8 * COPIED),
        Operation(results.LAYER, step, flops, 0),
    ]


def _cell(settings: RooflineSettings, point: Point) -> Cell:
    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        torch.manual_seed(settings.seed)
        found = operations(point)
        found += references(point, gemm_size=settings.gemm_size, seed=settings.seed)
        with fixed_threads(settings.threads), torch.inference_mode():
            timings = alternate({o.name: o.run for o in found}, rounds=settings.rounds, say=say)
        return [
            {"flops": o.flops, "bytes": o.bytes, "times": o.times, **timings[o.name].as_record()}
            for o in found
        ]

    sizes = {name: size for name, size in point.as_record().items() if name != "depth"}
    return Cell(
        name=f"n {point.length:,}, k {point.k}",
        settings={**sizes, "rounds": settings.rounds, "gemm_size": settings.gemm_size},
        variants=[{"operation": name} for name in OPERATIONS],
        work=point.length,
        run=run,
    )


if __name__ == "__main__":
    main(BENCHMARK)
