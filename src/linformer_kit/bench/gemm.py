"""The yardstick: a large matrix product, and the share of its rate that a layer reaches.

No layer made of matrix products can be faster than its multiplications at the rate of the best of
them, so the share says how much is left to gain, on any machine. The product is timed as one more
contestant, in the same rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..core.attention import LinformerAttention
from ..core.cost import (
    Attend,
    AttentionShape,
    EncoderShape,
    Shorten,
    attention_flops,
    encoder_flops,
)
from ..core.encoder import LinformerEncoder
from ..core.plan import choose
from .names import GEMM_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contestants import Point
    from .names import Mode

SIZE = GEMM_SIZE


def gemm(size: int) -> Callable[[], object]:
    """A square float32 matrix product."""
    left, right, out = (torch.ones(size, size) for _ in range(3))
    return lambda: torch.mm(left, right, out=out)


def gemm_flops(size: int) -> int:
    return 2 * size**3


def step_flops(model: nn.Module, point: Point, mode: Mode) -> int | None:
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
