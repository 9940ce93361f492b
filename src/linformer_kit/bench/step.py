"""One step of work with a model: what is timed, and what memory is measured of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..measure.memory import Work
from .contestants import Point, build

if TYPE_CHECKING:
    from collections.abc import Callable

    from .names import LayerKind, Mode


def make_input(point: Point, *, seed: int) -> Tensor:
    """The input of all contestants: (batch, length, dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(point.batch, point.length, point.dim, generator=generator)


def make_step(model: nn.Module, x: Tensor, mode: Mode) -> Callable[[], object]:
    """Inference is a forward pass. Training is forward and backward, to the input too."""
    if mode == "inference":
        model.eval()
        return lambda: _infer(model, x)
    model.train()
    x = x.clone().requires_grad_()  # as the layers above the first have it
    # Not ones: a norm takes a constant out, and nothing but rounding would flow back.
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
    """A point of the same kind to warm up with.

    It is long enough for all threads to work, and so to have the memory they keep for themselves.
    """
    length = min(256, point.length)
    return replace(point, batch=1, length=length, k=min(point.k, length))


def rate_in(mode: Mode, dropout: float) -> float:
    """The rate of dropout a model of this mode is built with."""
    return dropout if mode == "dropout" else 0.0


def memory_of_step(
    *,
    contestant: str,
    layer: LayerKind,
    mode: Mode,
    dropout: float,
    seed: int,
    threads: int,
    point: dict[str, Any],
) -> Work:
    """For `memory.peak_memory`. The warm-up is a model of its own: some take one length only."""
    torch.set_num_threads(threads)

    def prepare(point: Point) -> Callable[[], object]:
        rate = rate_in(mode, dropout)
        model = build(contestant, layer, point, dropout=rate, seed=seed)
        return make_step(model, make_input(point, seed=seed), mode)

    whole = Point(**point)
    return Work(warm_up=lambda: prepare(small(whole))(), prepare=lambda: prepare(whole))
