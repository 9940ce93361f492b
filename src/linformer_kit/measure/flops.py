"""FLOPs of the matrix products that run, those inside the fused CPU attention included.

PyTorch's counter knows the fused attention of GPUs; that of CPUs, and products that are added in
place, it counts as nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from ..core.cpu.flash import FLASH_BACKWARD, FLASH_FORWARD, HAS_FLASH


def count_flops() -> FlopCounterMode:
    """A context that counts the FLOPs of what runs in it: `get_total_flops()`."""
    mapping: dict[Any, Any] = {
        torch.ops.aten.addmm_: _sum,
        torch.ops.aten.baddbmm_: _sum,
    }
    if HAS_FLASH:
        mapping[FLASH_FORWARD.overloadpacket] = _forward
        mapping[FLASH_BACKWARD.overloadpacket] = _backward
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _sum(_: Any, one: Any, other: Any, *__: Any, **___: Any) -> int:
    """Of a product (..., R, S) times (..., S, C)."""
    return 2 * math.prod(one) * int(other[-1])


def _forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))
