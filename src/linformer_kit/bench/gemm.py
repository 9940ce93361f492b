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
from ..core.cost import attend_flops, shorten_flops
from ..core.plan import choose

if TYPE_CHECKING:
    from collections.abc import Callable

    from .contestants import LayerKind, Point
    from .step import Mode

SIZE = 2048  # large enough that a larger one is not faster


def gemm(size: int) -> Callable[[], object]:
    """A square float32 matrix product."""
    left, right, out = (torch.ones(size, size) for _ in range(3))
    return lambda: torch.mm(left, right, out=out)


def gemm_flops(size: int) -> int:
    return 2 * size**3


def step_flops(model: nn.Module, layer: LayerKind, point: Point, mode: Mode) -> int | None:
    """The matrix products of one step, in the order of multiplication that is used.

    A backward pass has two products for each of the forward pass. None for a model of others, which
    does not say in which order it multiplies.
    """
    attention = next((m for m in model.modules() if isinstance(m, LinformerAttention)), None)
    if attention is None:
        return None
    shape = attention.shape(batch=point.batch, length=point.length)
    plan = attention.plan or choose(shape)
    flops = shorten_flops(shape, plan.shorten) + attend_flops(shape, plan.attend)
    if layer == "encoder":
        flops += 2 * 2 * point.batch * point.length * point.dim * point.ff_dim
        flops *= point.depth
    return flops if mode == "inference" else 3 * flops
