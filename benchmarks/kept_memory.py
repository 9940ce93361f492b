"""What does `keep_memory()` bring, and what does it cost? Training steps with it and without.

    python -m benchmarks.kept_memory --length 16384 --dropout 0.1 --rounds 3

It cannot be taken back, so every measurement is a process of its own; those with and without take
turns. Each trains a small encoder for some steps and tells the time of a step, the pages that were
new to the process in the last one, and the peak of its memory. JSON, a line a process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch

from linformer_kit import LinformerEncoder, keep_memory
from linformer_kit.measure import machine


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Train in this process."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    kept = arguments.measure == "with" and keep_memory()
    encoder = LinformerEncoder(
        dim=512,
        depth=arguments.depth,
        num_heads=8,
        max_length=arguments.length,
        k=arguments.k,
        dropout=arguments.dropout,
    )
    optimizer = torch.optim.AdamW(encoder.parameters())
    x = torch.randn(1, arguments.length, 512)
    seconds = []
    for _ in range(arguments.steps):
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        encoder(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "keep_memory": kept,
        "best": min(seconds),
        "median": statistics.median(seconds),
        "new_pages": usage.ru_minflt - pages,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--k", type=int, default=256)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--measure", choices=("with", "without"), help="in this process, once")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments)))
        return
    found: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for _ in range(arguments.rounds):
        for which, results in found.items():
            child = subprocess.run(
                [sys.executable, "-m", "benchmarks.kept_memory", *sys.argv[1:], "--measure", which],
                capture_output=True,
                text=True,
                check=True,
            )
            print(child.stdout, end="", flush=True)
            results.append(json.loads(child.stdout))
    for name in ("best", "median", "peak_bytes"):
        without, kept = (
            statistics.median(result[name] for result in results) for results in found.values()
        )
        print(json.dumps({"of": name, "with_over_without": kept / without}))
    print(json.dumps(machine.describe(seed=0, threads=arguments.threads)))


if __name__ == "__main__":
    main()
