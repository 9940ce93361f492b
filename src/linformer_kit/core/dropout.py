"""Dropout that does not cost more than the matrix products around it.

On a CPU `F.dropout` spends about 10 ns on each value, most of it drawing a float: for the hidden
layer of a feed-forward block that is as long as its multiplication. Here 16 random bits decide
each value, four values to one draw, which is several times faster. The rate is rounded to a
multiple of 2**-16 and the rest scaled by exactly its inverse, so the expectation is kept.

Elsewhere (other devices, `torch.compile`, transforms of torch.func, forward mode) this is
`F.dropout`, and `torch.func.vmap` decides by its `randomness` whether samples share a mask.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .fastpath import eager_on_cpu

_LEVELS = 2**16


def _levels(p: float) -> int:
    return min(max(1, round(p * _LEVELS)), _LEVELS - 1)


def keep_mask(shape: tuple[int, ...], p: float) -> Tensor:
    """A boolean tensor on the CPU, False with probability p."""
    count = math.prod(shape)
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    lanes = draws.view(torch.int16)[:count].view(shape)  # uniform on [-2**15, 2**15)
    return lanes >= _levels(p) - _LEVELS // 2


def keep_scale(p: float) -> float:
    """What the values kept by `keep_mask` are multiplied by."""
    return _LEVELS / (_LEVELS - _levels(p))


def drop_(x: Tensor, keep: Tensor, p: float) -> Tensor:
    """Do it to x, in place: x * keep * scale. (As int8 the product is faster than with bools.)"""
    return x.mul_(keep.view(torch.int8)).mul_(keep_scale(p))


class _Drop(torch.autograd.Function):
    """x * keep * scale, holding one byte a value for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, p: float) -> Tensor:
        ctx.p = p
        ctx.save_for_backward(keep)
        return (x * keep.view(torch.int8)).mul_(keep_scale(p))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return grads[0] * keep.view(torch.int8) * keep_scale(ctx.p), None, None


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each value of x with probability p and scale the others by 1 / (1 - p)."""
    if not training or p == 0.0:
        return x
    if not eager_on_cpu(x):
        return F.dropout(x, p, training=True)
    result: Tensor = _Drop.apply(x, keep_mask(tuple(x.shape), p), p)
    return result


def drop_rows(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout of whole rows: x (..., D) with one decision for the last dimension."""
    if not training or p == 0.0:
        return x
    return x * dropout(x.new_ones(*x.shape[:-1], 1), p, training)
