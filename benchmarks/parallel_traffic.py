"""What sequence parallel sends for one layer and step, counted, beside what ring attention would.

    python benchmarks/parallel_traffic.py --ranks 4 --lengths 4096,16384,65536

starts gloo processes on this machine, runs forward and backward of one layer, and prints calls and
bytes of payload of one rank (the second, which has neighbours on both sides). The figure of ring
attention is computed: keys and values of S = n / ranks positions are sent ranks - 1 times forward
and, with their gradients, twice as many backward.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.parallel import count_traffic, local_part, parallelize

KINDS: dict[str, dict[str, Any]] = {
    "linear": {"projection": "linear"},
    "dynamic": {"projection": "dynamic"},
    "mean": {"projection": "mean"},
    "window": {"projection": "mean", "window": 128},
    "decoder": {"window": 128},
}


def ring_bytes(length: int, dim: int, ranks: int, itemsize: int = 4) -> int:
    """Keys and values around the ring once forward; with their gradients backward."""
    block = 2 * (length // ranks) * dim * itemsize
    return 3 * (ranks - 1) * block


def run(rank: int, store: str, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, arguments.ranks),
        rank=rank,
        world_size=arguments.ranks,
    )
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (arguments.ranks,), mesh_dim_names=("sequence",))
    for kind, options in KINDS.items():
        for length in arguments.lengths:
            torch.manual_seed(0)
            sizes = {"dim": arguments.dim, "depth": 1, "num_heads": 4, "k": arguments.k, **options}
            model = (
                LinformerDecoder(**sizes)
                if kind == "decoder"
                else LinformerEncoder(**sizes, max_length=length)
            )
            parallelize(model, mesh)
            x = local_part(torch.randn(1, length, arguments.dim), mesh, multiple_of=128)
            with torch.no_grad():
                model(x)  # the first call compares the models of the ranks
            with count_traffic() as traffic:
                model(x.clone().requires_grad_()).sum().backward()
            if rank == min(1, arguments.ranks - 1):
                calls = ", ".join(f"{n} {name}" for name, n in sorted(traffic.calls.items()))
                total = sum(traffic.bytes.values())
                ring = ring_bytes(length, arguments.dim, arguments.ranks)
                print(f"| {kind} | {length:,} | {calls} | {total:,} | {ring:,} |", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument(
        "--lengths",
        type=lambda text: [int(word) for word in text.split(",")],
        default=[4096, 16384, 65536],
    )
    arguments = parser.parse_args()
    print("| layer | n | calls | bytes a rank | ring attention, computed |")
    print("|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        torch.multiprocessing.spawn(run, (store, arguments), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
