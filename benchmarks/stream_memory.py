"""Streamed inference: peak memory and time for inputs of any length, and equality with one call.

    python benchmarks/stream_memory.py --length 10000000

writes random tokens to a file, reads them with a `LinformerModel` block by block in a fresh
process, and prints the peak memory of that process. With --compare the same input is also read by
one call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def peak_mib() -> int:
    """The peak memory of this process so far, libraries included (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def child(arguments: argparse.Namespace) -> None:
    import torch

    from linformer_kit.models import LinformerConfig, LinformerModel
    from linformer_kit.parallel import stream_pooled

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=256,
        hidden_size=arguments.dim,
        num_hidden_layers=arguments.depth,
        num_attention_heads=4,
        intermediate_size=4 * arguments.dim,
        max_position_embeddings=arguments.length,
        position_embedding_type="sinusoidal",
        projection=arguments.projection,
        k=arguments.k,
        window=arguments.window,
    )
    model = LinformerModel(config).eval()
    tokens = np.load(arguments.tokens, mmap_mode="r")
    started = time.perf_counter()
    row = stream_pooled(model, tokens, block=arguments.block, scratch=Path(arguments.tokens).parent)
    found = {
        "length": arguments.length,
        "seconds": round(time.perf_counter() - started, 1),
        "peak_mib": peak_mib(),
    }
    if arguments.compare:
        with torch.no_grad():
            ids = torch.tensor(tokens).long()[None]
            whole = model(ids).last_hidden_state.double().mean(1)[0]
        found["largest_difference"] = float((row - whole).abs().max())
        found["peak_mib_whole"] = peak_mib()
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=10_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--block", type=int, default=65_536)
    parser.add_argument("--projection", default="mean")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--scratch", default=None)
    parser.add_argument("--tokens", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tokens is not None:
        child(arguments)
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        path = Path(folder) / "tokens.npy"
        tokens = np.lib.format.open_memmap(path, "w+", np.uint8, (arguments.length,))
        generator = np.random.default_rng(0)
        for start in range(0, arguments.length, 2**20):
            some = tokens[start : start + 2**20]
            some[:] = generator.integers(0, 256, len(some), dtype=np.uint8)
        tokens.flush()
        command = [sys.executable, __file__, *sys.argv[1:], "--tokens", str(path)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
