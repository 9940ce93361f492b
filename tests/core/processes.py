"""The gradient that two processes agree on, each of which saw half of the batch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor, nn

    Build = Callable[[], tuple[nn.Module, dict[str, Tensor]]]


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """the mean square of the output for a batch of arguments, of which `x` is the first"""
    others = {name: value for name, value in batch.items() if name != "x"}
    return model(batch["x"], **others).square().mean()


def _half(rank: int, build: Build, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    module, batch = build()
    model = DistributedDataParallel(module)
    half = {name: value.chunk(2)[rank] for name, value in batch.items()}
    for _ in range(2):  # a second step shows that every gradient was reduced once
        model.zero_grad()
        loss_of(model, half).backward()
    if rank == 0:
        torch.save({n: p.grad for n, p in module.named_parameters()}, f"{folder}/grads.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may hold tensors while the interpreter ends, and abort it


def gradients_of_two(build: Build, folder: Path) -> dict[str, Tensor]:
    """every parameter's gradient under DDP on two processes; `build` must be importable"""
    mp.spawn(_half, args=(build, str(folder)), nprocs=2)
    return torch.load(folder / "grads.pt", weights_only=True)
