"""Dropout of single values and of whole rows.

On a CPU masks are drawn by `cpu/dropout.py`. Elsewhere (other devices, `torch.compile`, transforms
of torch.func, forward mode) this is `F.dropout`; under `torch.func.vmap` its `randomness` argument
decides whether samples share a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F

from .cpu.dropout import dropout_16bit
from .cpu.predicate import eager_on_cpu

if TYPE_CHECKING:
    from torch import Tensor


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero each value of x with probability p and scale the others by 1 / (1 - p)."""
    if not training or p == 0.0:
        return x
    return dropout_16bit(x, p) if eager_on_cpu(x) else F.dropout(x, p, training=True)


def drop_rows(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout of whole rows: x (..., D) with one decision for the last dimension."""
    if not training or p == 0.0:
        return x
    return x * dropout(x.new_ones(*x.shape[:-1], 1), p, training)
