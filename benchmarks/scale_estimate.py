"""Time and bytes of a training step over many ranks, estimated: Linformer, ring attention, Ulysses.

    python benchmarks/scale_estimate.py

FLOPs are those of `core/cost.py`; what a Linformer sends is what `parallel_traffic.py` counts:
forward and backward one all-reduce of k x (dim + 1) float32 values a layer. Speeds are assumptions,
printed with the table. A training step is three forward passes.
"""

from __future__ import annotations

import argparse
import math

from linformer_kit.core.cost import AttentionShape, EncoderShape, encoder_flops
from linformer_kit.core.plan import choose

DIM, DEPTH, HEADS, K = 1024, 24, 16, 256
FLOPS = 1.5e14  # a second and rank, reached
BANDWIDTH = 2.5e10  # bytes a second and rank, between machines
LATENCY = 2e-5  # seconds of one message
VALUE = 2  # bytes of an activation that exact attention sends


def linformer(length: int, ranks: int) -> tuple[float, float, float]:
    """Seconds of computation and of communication, and bytes that a rank sends, a step."""
    one = AttentionShape(
        batch=1, length=length, dim=DIM, num_heads=HEADS, k=K, max_length=length, projection="mean"
    )
    shape = EncoderShape(layers=(one,) * DEPTH, ff_dim=4 * DIM)
    plan = choose(one)
    flops = 3 * encoder_flops(shape, ((plan.shorten, plan.attend),) * DEPTH) / ranks
    calls = 2 * DEPTH if ranks > 1 else 0
    sent = calls * 2 * (ranks - 1) / ranks * K * (DIM + 1) * 4
    latency = calls * 2 * math.ceil(math.log2(ranks)) * LATENCY if ranks > 1 else 0.0
    return flops / FLOPS, sent / BANDWIDTH + latency, sent


def exact(length: int, ranks: int, sent: float, calls: int) -> tuple[float, float, float]:
    projections = 2 * length * DIM * (4 * DIM + 8 * DIM)
    attention = 4 * length * length * DIM
    flops = 3 * DEPTH * (projections + attention) / ranks
    return flops / FLOPS, sent / BANDWIDTH + calls * LATENCY, sent


def ring(length: int, ranks: int) -> tuple[float, float, float]:
    """Keys and values pass all other ranks; with their gradients in the backward pass."""
    block = 2 * length / ranks * DIM * VALUE
    return exact(length, ranks, DEPTH * 3 * (ranks - 1) * block, DEPTH * 3 * (ranks - 1))


def ulysses(length: int, ranks: int) -> tuple[float, float, float] | None:
    """All-to-all of queries, keys, values and outputs; at most one rank for each head."""
    if ranks > HEADS:
        return None
    share = length / ranks * DIM * VALUE * (ranks - 1) / ranks
    return exact(length, ranks, DEPTH * 8 * share, DEPTH * 8)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"dim {DIM}, {DEPTH} layers, {HEADS} heads, k {K}, batch 1; {FLOPS:.1e} FLOP/s a rank,")
    print(f"{BANDWIDTH:.1e} bytes/s a rank, {LATENCY:.0e} s a message. Seconds: compute + send.\n")
    print("| n | ranks | Linformer | sent | ring attention | sent | Ulysses | sent |")
    print("|---|---|---|---|---|---|---|---|")
    for length in (10**5, 10**6, 10**7, 10**8):
        for ranks in (1, 8, 64, 512):
            cells = []
            for found in (linformer(length, ranks), ring(length, ranks), ulysses(length, ranks)):
                if found is None:
                    cells.append("more ranks than heads | ")
                    continue
                compute, send, sent = found
                cells.append(f"{compute:,.2g} + {send:.2g} | {sent / 1e9:,.2g} GB")
            print(f"| {length:,} | {ranks} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
