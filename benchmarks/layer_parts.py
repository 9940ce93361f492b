"""How fast can an attention layer be? Its parts, each at its best, beside a large product.

    python benchmarks/layer_parts.py --length 4096 --k 256

Every part of one training step of a layer (kv sharing, W_q, attention and W_o one after the other)
is timed on its own, with its results in memory that is there already, in turns with the product
that `linformer bench attention` takes for its yardstick. If every part ran as fast as it does
alone, and nothing came between them, the layer would reach the share printed last. JSON, a line a
part.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import torch

from linformer_kit.bench import machine
from linformer_kit.bench.gemm import SIZE, gemm, gemm_flops
from linformer_kit.bench.timing import alternate, fixed_threads
from linformer_kit.core.cpu.flash import FLASH_BACKWARD, FLASH_FORWARD
from linformer_kit.core.plain_sdpa import split_heads

if TYPE_CHECKING:
    from collections.abc import Callable

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
                (
                    torch.mm(rows.t(), rows, out=grad_weight),
                    torch.mm(rows, weight, out=more_rows),
                )
                for _ in "kv"
            ],
            4 * small,
        ),
        "through E": (lambda: y.addmm_(matrix.t(), rows), shorter),
        "gradient of E": (lambda: torch.mm(rows, x.t(), out=grad_matrix), shorter),
    }
    return forward, backward


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--k", type=int, default=256)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    forward, backward = parts_of(arguments.length, arguments.k, arguments.dim, arguments.heads)
    parts = forward | backward
    runs = {name: run for name, (run, _) in parts.items()} | {"product": gemm(SIZE)}
    with fixed_threads(arguments.threads):
        timings = alternate(runs, rounds=arguments.rounds)
    best = {name: min(timing.seconds) for name, timing in timings.items()}
    rate = gemm_flops(SIZE) / best["product"]
    for name, (_, flops) in parts.items():
        share = flops / best[name] / rate
        print(
            json.dumps({"part": name, "flops": flops, "best": best[name], "share_of_gemm": share})
        )
    for name, whole in (("inference", forward), ("training", parts)):
        seconds = sum(best[part] for part in whole)
        share = sum(flops for _, flops in whole.values()) / seconds / rate
        print(json.dumps({"whole": name, "best": seconds, "share_of_gemm": share}))
    print(json.dumps(machine.describe(seed=0, threads=arguments.threads)))


if __name__ == "__main__":
    main()
