"""`linformer bench roofline`: what share of the machine's GEMM rate each operation reaches.

The operations of one Linformer encoder layer in inference, each at the sizes the layer has it in:
those after the compression on a block of rows (`core/cpu/blocks.py`). Two yardsticks take turns
with them: a large matrix product (the machine's highest rate) and a copy (its bandwidth). An
operation of f FLOPs and b bytes can run at most at min(GEMM rate, bandwidth * f / b): its roof.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ..core import checks
from ..core.cpu.blocks import rows_in_block
from .cells import Cell
from .contestants import Point, build
from .gemm import SIZE, gemm, gemm_flops, step_flops
from .step import make_input, make_step
from .timing import alternate, fixed_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from .records import Record
    from .timing import Say

BENCH = "roofline"
GEMM, COPY, LAYER = "GEMM", "copy", "whole layer"
COPIED = 2**26  # floats: far beyond every cache


@dataclass(frozen=True)
class Operation:
    """What is timed, its FLOPs, and the bytes it must read and write at least."""

    name: str
    run: Callable[[], object]
    flops: int
    bytes: int
    times: int = 1  # how often the layer does it


@dataclass(frozen=True, kw_only=True)
class RooflineBench:
    """What to measure."""

    points: tuple[Point, ...]
    rounds: int = 20
    threads: int = 2
    seed: int = 0
    gemm_size: int = SIZE

    def __post_init__(self) -> None:
        for name in ("rounds", "threads", "gemm_size"):
            checks.positive(name, getattr(self, name))
        for point in self.points:
            point.check_fits()


def cells(bench: RooflineBench) -> list[Cell]:
    return [_cell(bench, point) for point in bench.points]


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


def _cell(bench: RooflineBench, point: Point) -> Cell:
    settings = {
        "dim": point.dim,
        "num_heads": point.num_heads,
        "k": point.k,
        "length": point.length,
        "batch": point.batch,
        "rounds": bench.rounds,
        "gemm_size": bench.gemm_size,
    }

    def run(say: Say) -> list[Record]:
        torch.manual_seed(bench.seed)
        found = operations(point)
        source, target = torch.randn(COPIED), torch.empty(COPIED)
        model = build("linformer-kit", "encoder", point, dropout=0.0, seed=bench.seed)
        layer_flops = step_flops(model, point, "inference")
        assert layer_flops is not None
        found += [
            Operation(GEMM, gemm(bench.gemm_size), gemm_flops(bench.gemm_size), 0),
            Operation(COPY, lambda: target.copy_(source), 0, 8 * COPIED),
            Operation(
                LAYER,
                make_step(model, make_input(point, seed=bench.seed), "inference"),
                layer_flops,
                0,
            ),
        ]
        with fixed_threads(bench.threads), torch.inference_mode():
            timings = alternate({o.name: o.run for o in found}, rounds=bench.rounds, say=say)
        return [
            {
                "operation": operation.name,
                "flops": operation.flops,
                "bytes": operation.bytes,
                "times": operation.times,
                **timings[operation.name].as_record(),
                "note": timings[operation.name].note,
            }
            for operation in found
        ]

    name = f"n {point.length:,}, k {point.k}"
    return Cell(name=name, settings=settings, work=point.length, run=run)
