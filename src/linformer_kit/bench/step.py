"""One step of work with a model: what is timed, and what memory is measured of."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..measure.memory import Work, peak_memory
from .implementations import build
from .settings import Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..measure.records import Record


def make_input(point: Point, *, seed: int) -> Tensor:
    """The same input for all models: (batch, length, dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(point.batch, point.length, point.dim, generator=generator)


def make_step(model: nn.Module, x: Tensor, mode: str) -> Callable[[], object]:
    """Inference is a forward pass. Training is forward and backward, to the input too."""
    if mode == "inference":
        model.eval()
        return lambda: _infer(model, x)
    model.train()
    x = x.clone().requires_grad_()  # as the layers above the first have it
    # Not ones: a norm removes a constant, and the gradients would be rounding errors.
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return lambda: _train(model, x, upstream)


def _infer(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y: Tensor = model(x)
    return y


def _train(model: nn.Module, x: Tensor, upstream: Tensor) -> None:
    model.zero_grad(set_to_none=True)
    x.grad = None
    model(x).backward(upstream)


def small(point: Point) -> Point:
    """A small point to warm up with, long enough for all threads to allocate their buffers."""
    length = min(256, point.length)
    return replace(point, batch=1, length=length, k=min(point.k, length))


def rate_in(mode: str, dropout: float) -> float:
    """The rate of dropout a model of this mode is built with."""
    return dropout if mode == "dropout" else 0.0


def memory_result(target: str, arguments: dict[str, Any], *, timeout: float = 600.0) -> Record:
    """The peak memory of a piece of work as the fields of a record."""
    found = asdict(peak_memory(target, arguments, timeout=timeout))
    return {"note": found.pop("problem"), **found}


def step_memory(point: Point, arguments: Record, *, timeout: float = 600.0) -> Record:
    """The peak memory of a step; `arguments` are those of `memory_of_step`."""
    target = "linformer_kit.bench.step:memory_of_step"
    return memory_result(target, {**arguments, "point": asdict(point)}, timeout=timeout)


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
