"""How fast can an attention layer be? Its parts, each at its best, beside a large product.

    python -m benchmarks.layer_parts --length 4096 --k 256

Every part of one training step of a layer (kv sharing, W_q, attention and W_o one after the other)
is timed on its own, writing into memory that is allocated already, in turns with the product that
`linformer bench attention` compares with. If every part ran as fast as it does alone, and nothing
came between them, the layer would reach the share printed last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from linformer_kit.cli.bench import main
from linformer_kit.config import limits
from linformer_kit.core.cpu.flash import FLASH_BACKWARD, FLASH_FORWARD
from linformer_kit.core.plain_sdpa import split_heads
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import GEMM_SIZE, Benchmark
from linformer_kit.evidence.bench.gemm import gemm, gemm_flops
from linformer_kit.evidence.bench.settings import Point, Settings
from linformer_kit.evidence.bench.views import Column, Results, Table
from linformer_kit.measure import quantities
from linformer_kit.measure.cells import Cell
from linformer_kit.measure.timing import Say, Timing, alternate, fixed_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from linformer_kit.measure.records import Record

WHOLE = ("whole, inference", "whole, training")


@dataclass(frozen=True, kw_only=True)
class PartsSettings(Settings):
    """One attention layer."""

    length: int = options.size(4096, about="Length n.", quick=256, high=limits.LENGTH)
    k: int = options.k(256, quick=32)
    dim: int = options.dim(512, quick=64)
    heads: int = options.heads(8, quick=2)
    rounds: int = options.rounds(20, quick=2)
    threads: int = options.threads()

    def check(self) -> None:
        Point(dim=self.dim, num_heads=self.heads, k=self.k, length=self.length).check_fits()


BENCHMARK = Benchmark(
    help="Time the parts of an attention layer, each alone, beside a large product.",
    settings=PartsSettings,
    module="benchmarks.layer_parts",
    results=Results(
        bench="layer_parts",
        keys=("length", "k", "part"),
        sizes=("length", "k", "dim", "heads"),
        caption="n {length:,}, k {k}, dim {dim}, {heads} heads",
        tables=(
            Table(
                title="Parts of an attention layer",
                rows=(("part", "part"),),
                columns=(
                    Column("time", "best", quantities.seconds),
                    Column("of GEMM rate", "share_of_gemm", "{:.0%}".format),
                ),
            ),
        ),
    ),
)

Part = tuple["Callable[[], object]", int]  # how to run it, its floating-point operations


def parts_of(length: int, k: int, dim: int, heads: int) -> tuple[dict[str, Part], dict[str, Part]]:
    """The parts of the forward and of the backward pass."""
    x, y, upstream = (torch.randn(length, dim) for _ in range(3))
    matrix, grad_matrix = torch.randn(k, length), torch.empty(k, length)
    rows, more_rows = torch.randn(k, dim), torch.empty(k, dim)
    weight, grad_weight = torch.randn(dim, dim) / dim**0.5, torch.empty(dim, dim)
    bias = torch.randn(dim)

    query, key, value, grad = (split_heads(each[None], heads) for each in (x, rows, rows, upstream))
    found, sums = FLASH_FORWARD(query, key, value)
    product, shorter, small = 2 * length * dim * dim, 2 * length * k * dim, 2 * k * dim * dim
    forward: dict[str, Part] = {
        "E x": (lambda: torch.mm(matrix, x, out=more_rows), shorter),
        "W_k, W_v": (lambda: [torch.mm(rows, weight.t(), out=more_rows) for _ in "kv"], 2 * small),
        "W_q": (lambda: torch.addmm(bias, x, weight.t(), out=y), product),
        "attention": (lambda: FLASH_FORWARD(query, key, value), 2 * shorter),
        "W_o": (lambda: torch.addmm(bias, x, weight.t(), out=y), product),
    }
    backward: dict[str, Part] = {
        "through W_o, W_q": (
            lambda: [torch.mm(upstream, weight, out=y) for _ in "oq"],
            2 * product,
        ),
        "gradients of W_o, W_q": (
            lambda: [torch.mm(upstream.t(), x, out=grad_weight) for _ in "oq"],
            2 * product,
        ),
        "through the attention": (
            lambda: FLASH_BACKWARD(grad, query, key, value, found, sums, 0.0, False),
            4 * shorter,
        ),
        "gradients of W_k, W_v, through them": (
            lambda: [
                (torch.mm(rows.t(), rows, out=grad_weight), torch.mm(rows, weight, out=more_rows))
                for _ in "kv"
            ],
            4 * small,
        ),
        "through E": (lambda: y.addmm_(matrix.t(), rows), shorter),
        "gradient of E": (lambda: torch.mm(rows, x.t(), out=grad_matrix), shorter),
    }
    return forward, backward


def cells(settings: PartsSettings) -> list[Cell]:
    sizes = (settings.length, settings.k, settings.dim, settings.heads)

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        torch.manual_seed(settings.seed)
        forward, backward = parts_of(*sizes)
        parts = forward | backward
        runs = {name: run for name, (run, _) in parts.items()} | {"product": gemm(GEMM_SIZE)}
        with fixed_threads(settings.threads):
            timings = alternate(runs, rounds=settings.rounds, say=say)
        flops = {name: count for name, (_, count) in parts.items()}
        flops["product"] = gemm_flops(GEMM_SIZE)
        for name, whole in zip(WHOLE, (forward, parts), strict=True):
            timings[name] = Timing((sum(min(timings[part].seconds) for part in whole),))
            flops[name] = sum(flops[part] for part in whole)
        rates = {name: flops[name] / min(timing.seconds) for name, timing in timings.items()}
        return [
            {
                **timing.as_record(),
                "flops": flops[name],
                "share_of_gemm": rates[name] / rates["product"],
            }
            for name, timing in timings.items()
        ]

    names = [name for parts in parts_of(2, 1, settings.heads, settings.heads) for name in parts]
    return [
        Cell(
            name=f"n {settings.length:,}, k {settings.k}",
            settings=dict(zip(("length", "k", "dim", "heads"), sizes, strict=True))
            | {"rounds": settings.rounds},
            variants=[{"part": name} for name in (*names, "product", *WHOLE)],
            run=run,
        )
    ]


if __name__ == "__main__":
    main(BENCHMARK)
