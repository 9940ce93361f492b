"""The GEMM rate: a large matrix product, and the share of its rate that a layer reaches.

A layer made of matrix products cannot be faster than its multiplications at the rate of a large
product, so the share says how much is left to gain, on any machine. The product is timed in the
same rounds as the layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ...core.attention import LinformerAttention
from ...core.cost import (
    Attend,
    AttentionShape,
    EncoderShape,
    Shorten,
    attention_flops,
    encoder_flops,
)
from ...core.cpu.gemm import linear_into
from ...core.encoder import LinformerEncoder
from ...core.plan import choose

if TYPE_CHECKING:
    from collections.abc import Callable

    from .settings import Point


def gemm(size: int) -> Callable[[], object]:
    """A square float32 matrix product, by the library that the layers use on this machine."""
    left, right, out = (torch.ones(size, size) for _ in range(3))
    return lambda: linear_into(left, right, None, out=out)


def gemm_flops(size: int) -> int:
    return 2 * size**3


def step_flops(model: nn.Module, point: Point, mode: str) -> int | None:
    """The matrix products of one step, in the order of multiplication that is used.

    A backward pass has two products for each of the forward pass. None for a model of others, which
    does not say in which order it multiplies.
    """
    if isinstance(model, LinformerAttention):
        shape = model.shape(batch=point.batch, length=point.length)
        shorten, attend = _plan(shape)
        forward = attention_flops(shape, shorten=shorten, attend=attend)
    elif isinstance(model, LinformerEncoder):
        layers = model.shape(batch=point.batch, length=point.length)
        forward = encoder_flops(layers, plans_of(layers))
    else:
        return None
    return forward if mode == "inference" else 3 * forward


def plans_of(shape: EncoderShape) -> tuple[tuple[Shorten, Attend], ...]:
    """The order of multiplication that each layer would choose."""
    return tuple(_plan(layer) for layer in shape.layers)


def _plan(shape: AttentionShape) -> tuple[Shorten, Attend]:
    plan = choose(shape)
    return plan.shorten, plan.attend
