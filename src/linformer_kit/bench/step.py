"""One step of a model, forward or forward and backward, and the measurement of its memory."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..measure.cells import Cell
from ..measure.memory import Work, peak_memory
from .implementations import build
from .settings import Point

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..measure.records import Record
    from ..measure.timing import Say

MEMORY_OF_STEP = "linformer_kit.bench.step:memory_of_step"


def make_input(point: Point, *, seed: int) -> Tensor:
    """The same input for all models: (batch, length, dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(point.batch, point.length, point.dim, generator=generator)


def make_step(model: nn.Module, x: Tensor, mode: str) -> Callable[[], object]:
    """Inference is a forward pass. Training is forward and backward, to the input too."""
    if mode == "inference":
        model.eval()
        return torch.inference_mode()(lambda: model(x))
    model.train()
    x = x.clone().requires_grad_()  # as the layers above the first have it
    # Not ones: a norm removes a constant, and the gradients would be rounding errors.
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

    def train() -> None:
        model.zero_grad(set_to_none=True)
        x.grad = None
        model(x).backward(upstream)

    return train


def small(point: Point) -> Point:
    """A small point to warm up with, long enough for all threads to allocate their buffers."""
    length = min(256, point.length)
    return replace(point, batch=1, length=length, k=min(point.k, length))


def rate_in(mode: str, dropout: float) -> float:
    """The dropout rate of a model in this mode."""
    return dropout if mode == "dropout" else 0.0


def memory_result(target: str, arguments: dict[str, Any], *, timeout: float = 600.0) -> Record:
    """The peak memory of a piece of work as the fields of a record."""
    found = asdict(peak_memory(target, arguments, timeout=timeout))
    return {"note": found.pop("problem"), **found}


def memory_cell(
    name: str,
    settings: Record,
    target: str,
    arguments: dict[str, Any],
    *,
    work: float,
    timeout: float = 600.0,
    why_skipped: Callable[[], str | None] = lambda: None,
) -> Cell:
    """A cell with one record: the peak memory of `target`, in a process of its own."""

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        say("memory")
        if (reason := why_skipped()) is not None:
            return [{"work": None, "total": None, "note": reason}]
        return [memory_result(target, arguments, timeout=timeout)]

    return Cell(name=name, settings={"what": "memory", **settings}, work=work, run=run)


def memory_of_step(
    *, model: str, layer: str, mode: str, dropout: float, seed: int, threads: int,
    point: dict[str, Any],
) -> Work:  # fmt: skip
    """For `peak_memory`. The warm-up is a model of its own: some take one length only."""
    torch.set_num_threads(threads)

    def prepare(point: Point) -> Callable[[], object]:
        built = build(model, layer, point, dropout=rate_in(mode, dropout), seed=seed)
        return make_step(built, make_input(point, seed=seed), mode)

    whole = Point(**point)
    return Work(warm_up=lambda: prepare(small(whole))(), prepare=lambda: prepare(whole))
