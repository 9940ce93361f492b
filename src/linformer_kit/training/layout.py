"""Processes as data x sequence: which rows a process reads, and which positions of them.

torchrun's processes form a grid. The processes of one line, a sequence group, read the same rows;
each keeps its own part of their positions. Lines read different rows.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from ..core.projection_kinds import ADD_OVER_SPANS
from ..data.masking import IGNORED
from ..errors import UserError, user_input
from ..measure import quantities
from ..parallel.parts import SEQUENCE, bounds
from ..parallel.swap import check

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from ..config.schema import RunConfig
    from ..data.collate import Batch

TASKS = ("mlm", "clm", "classify", "tag")  # whose rows can be cut
KEY = "train.sequence_parallel"
POSITIONS = ("input_ids", "attention_mask", "inputs_embeds")  # what has a column for each position


def world() -> tuple[int, int]:
    """Which process is this, of how many, by torchrun."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def restarted() -> bool:
    """Whether torchrun has started this process again, after one of its processes had ended."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def join_again() -> None:
    """Form the process group of processes that torchrun has started again.

    The store of torchrun (torch 2.13, --standalone) still has the addresses of the processes that
    have ended, under the names that the new ones would look up. So they get names of their own.
    """
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not restarted() or not shared or dist.is_initialized():
        return
    rank, processes = world()
    names: Any = dist  # not all of it is exported to type checkers
    store = names.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    attempt = f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
    dist.init_process_group(
        None if torch.accelerator.is_available() else "gloo",
        store=names.PrefixStore(attempt, store),
        rank=rank,
        world_size=processes,
    )


@dataclass(frozen=True)
class Layout:
    """The place of this process among all: ranks of a sequence group follow each other."""

    rank: int
    processes: int
    sequence: int = 1  # processes of one sequence group

    @property
    def data(self) -> int:
        """How many groups there are: each reads rows of its own."""
        return self.processes // self.sequence

    @property
    def data_rank(self) -> int:
        return self.rank // self.sequence

    @property
    def sequence_rank(self) -> int:
        return self.rank % self.sequence

    def mesh(self, device: str) -> DeviceMesh:
        """All processes call this together."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(
            device, (self.data, self.sequence), mesh_dim_names=("data", SEQUENCE)
        )


def layout_of(config: RunConfig) -> Layout:
    """The layout of a training; a run that is scored later by other processes is not cut."""
    rank, processes = world()
    sequence = config.train.sequence_parallel
    return Layout(rank, processes, sequence if processes % sequence == 0 else 1)


def check_layout(config: RunConfig, processes: int) -> None:
    """Refuse a number of sequence ranks that the processes, the rows or the task do not allow."""
    if config.train.block_rows:
        _check_blocks(config)
    elif config.train.scratch is not None:
        raise UserError(
            f"train.scratch needs train.block_rows: got {config.train.scratch!r} without it."
        )
    ranks = config.train.sequence_parallel
    if ranks == 1:
        return
    if processes % ranks:
        raise UserError(
            f"{KEY} must divide the number of processes: got {ranks} and "
            f"{quantities.count(processes, 'process', 'processes')}. Start it with torchrun "
            "--nproc_per_node "
            f"{ranks}, or a multiple."
        )
    if config.task not in TASKS:
        raise UserError(
            f"{KEY} is for the tasks {', '.join(TASKS)}: got task {config.task!r}. Leave it out; "
            "processes then read different rows."
        )
    if config.data.max_length < ranks:
        raise UserError(
            f"data.max_length must be at least {KEY}, one position for each rank: got "
            f"{config.data.max_length} and {ranks}. Use fewer sequence ranks."
        )
    if config.train.compile:
        raise UserError(f"{KEY} does not work with train.compile: got both. Leave one out.")
    if config.model.start is not None:
        return  # see check_model
    given = config.model.options
    if config.task == "clm":
        kind = "full" if given.get("causal_attention") == "full" else None
    else:
        kind = given.get("projection", "linear")
    if kind is not None and kind not in ADD_OVER_SPANS:
        name = "causal_attention" if config.task == "clm" else "projection"
        allowed = ("slots",) if config.task == "clm" else ADD_OVER_SPANS
        raise UserError(
            f"{KEY} needs a model.{name} that is a sum over positions, {' or '.join(allowed)}: got "
            f"{kind!r}."
        )


def _check_blocks(config: RunConfig) -> None:
    """Layers are either recomputed in blocks of rows, or handled in one of these ways."""
    train = config.train
    if train.scratch is not None and not Path(train.scratch).is_dir():
        raise UserError(f"train.scratch must be a folder that exists: got {train.scratch!r}.")
    others = {
        "train.gradient_checkpointing": train.gradient_checkpointing,
        "train.sequence_parallel": train.sequence_parallel > 1,
        "train.fsdp": train.fsdp,
        "train.compile": train.compile,
    }
    for name, given in others.items():
        if given:
            raise UserError(f"train.block_rows does not work with {name}: got both. Leave one out.")
    if config.task in ("clm", "translate"):
        raise UserError(
            f"train.block_rows is for encoders: got task {config.task!r}, which has a decoder. Use "
            "train.gradient_checkpointing."
        )


def check_model(config: RunConfig, model: nn.Module) -> None:
    """The same of a model that is known only when it is built, as that of model.from."""
    if config.train.sequence_parallel > 1:
        with user_input(f"{KEY} = {config.train.sequence_parallel}"):
            check(model)


@dataclass(frozen=True)
class OwnPositions:
    """From a batch of whole rows to the part of this process."""

    layout: Layout
    chunk: int  # parts begin at multiples of the window, if rows are long enough
    shifted: bool  # a label is the next token: the first is never asked for

    def __call__(self, batch: Batch) -> Batch:
        ranks = self.layout.sequence
        if self.shifted:
            batch["labels"][:, 0] = IGNORED
        found: Batch = {}
        for name, value in batch.items():
            if name not in POSITIONS and not (name == "labels" and value.dim() == 2):
                found[name] = value
                continue
            missing = max(0, ranks - value.shape[1])  # each rank has at least one position
            if missing:
                fill = IGNORED if name == "labels" else 0
                value = F.pad(value, (0, 0) * (value.dim() - 2) + (0, missing), value=fill)
            held = bounds(value.shape[1], ranks, multiple_of=self.chunk)
            first, last = held[self.layout.sequence_rank]
            found[name] = value[:, first:last].clone()  # the rest of the row is freed
        return found


def chunk_of(model: nn.Module) -> int:
    """The positions that parts are multiples of, so that the halo of a window is smallest."""
    return max([1, *(int(getattr(module, "window", 0) or 0) for module in model.modules())])
