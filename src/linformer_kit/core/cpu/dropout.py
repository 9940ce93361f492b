"""Dropout masks from 16 random bits for each value.

On a CPU `F.dropout` needs about 10 ns for each value, most of it to draw a float: as long as the
matrix product before it takes for the hidden layer of a feed-forward block. Here one draw of 64
bits serves four values, which is several times faster. The rate is rounded to a multiple of 2**-16;
the kept values are scaled by the exact inverse of the rounded rate, which keeps the expectation.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

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
    """The factor for the values that `keep_mask` keeps."""
    return _LEVELS / (_LEVELS - _levels(p))


def drop_(x: Tensor, keep: Tensor, p: float) -> Tensor:
    """x * keep * scale in place. (As int8 the product is faster than with booleans.)"""
    return x.mul_(keep.view(torch.int8)).mul_(keep_scale(p))


class _Drop(torch.autograd.Function):
    """x * keep * scale. Saves one byte for each value for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keep: Tensor, p: float) -> Tensor:
        ctx.p = p
        ctx.save_for_backward(keep)
        return (x * keep.view(torch.int8)).mul_(keep_scale(p))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return grads[0] * keep.view(torch.int8) * keep_scale(ctx.p), None, None


def dropout_16bit(x: Tensor, p: float) -> Tensor:
    """Dropout of x with the rate p, 0 < p < 1."""
    result: Tensor = _Drop.apply(x, keep_mask(tuple(x.shape), p), p)
    return result
