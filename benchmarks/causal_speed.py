"""How fast is the causal Linformer? Against full causal attention on PyTorch's fused kernel.

    python benchmarks/causal_speed.py

One attention layer of each, same sizes, taking turns in one process: a forward pass and a training
step at growing lengths, then one step of generation after contexts of growing length. Prints a JSON
line for each measurement.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from linformer_kit.bench.machine import describe
from linformer_kit.bench.timing import alternate, fixed_threads, times_faster
from linformer_kit.core.causal import CausalLinformerAttention
from linformer_kit.core.full_causal import CausalFullAttention

if TYPE_CHECKING:
    from collections.abc import Callable

SLOTS, FULL = "slots", "full"


def forward(model: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> None:
        with torch.inference_mode():
            model(x)

    return run


def training(model: nn.Module, x: Tensor) -> Callable[[], object]:
    x = x.clone().requires_grad_()
    upstream = torch.randn_like(x)

    def run() -> None:
        model.zero_grad(set_to_none=True)
        x.grad = None
        model(x).backward(upstream)

    return run


def generation(model: nn.Module, context: Tensor, steps: int) -> Callable[[], object]:
    """Some steps from the same state, made of the context beforehand."""
    batch, length, _ = context.shape
    with torch.inference_mode():
        empty = model.init_state(batch, device=context.device, dtype=context.dtype)
        position = torch.zeros(batch, dtype=torch.int64)
        _, state = model.extend(context, position + length, empty, position)

    def run() -> None:
        past, place = state, position + length
        with torch.inference_mode():
            for i in range(steps):
                _, past = model.step(context[:, i : i + 1], past, place)
                place = place + 1

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 4096, 16384, 65536])
    parser.add_argument(
        "--alone", type=int, nargs="*", default=[131072], help="lengths of ours only"
    )
    parser.add_argument("--longest-training", type=int, default=16384)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 4096, 16384, 65536])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--steps", type=int, default=32, help="tokens in one timed run")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    sizes = {"dim": arguments.dim, "num_heads": arguments.heads}
    models: dict[str, nn.Module] = {
        SLOTS: CausalLinformerAttention(**sizes, k=arguments.k, window=arguments.window),
        FULL: CausalFullAttention(**sizes),
    }
    machine = describe(seed=arguments.seed, threads=arguments.threads)

    def report(what: str, length: int, runs: dict[str, Callable[[], object]], units: int) -> None:
        with fixed_threads(arguments.threads):
            timings = alternate(runs, rounds=arguments.rounds, fewest=2)
        for name, timing in timings.items():
            record = {
                "bench": "causal speed",
                "what": what,
                "attention": name,
                "length": length,
                **{key: getattr(arguments, key) for key in ("dim", "heads", "k", "window")},
                "seconds": timing.seconds,
                "best_per_token": None if timing.best is None else timing.best / units,
                "ours_times_faster": times_faster(timings[SLOTS], timing),
                "machine": machine,
            }
            print(json.dumps(record), flush=True)

    for length in [*arguments.lengths, *arguments.alone]:
        x = torch.randn(1, length, arguments.dim)
        taking_part = {SLOTS: models[SLOTS]} if length in arguments.alone else models
        report("forward", length, {n: forward(m, x) for n, m in taking_part.items()}, length)
        if length <= arguments.longest_training:
            report("training", length, {n: training(m, x) for n, m in taking_part.items()}, length)
    # All contexts of one kind take turns, so that they can be compared with each other.
    steps = arguments.steps
    for name, model in models.items():
        runs = {
            str(length): generation(model, torch.randn(1, length, arguments.dim), steps)
            for length in arguments.contexts
        }
        with fixed_threads(arguments.threads):
            timings = alternate(runs, rounds=arguments.rounds)
        for length, timing in timings.items():
            record = {
                "bench": "causal speed",
                "what": "generation",
                "attention": name,
                "length": int(length),
                "seconds": timing.seconds,
                "best_per_token": None if timing.best is None else timing.best / steps,
                "machine": machine,
            }
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
