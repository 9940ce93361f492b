"""FLOPs of the matrix products that run, those inside the fused CPU attention included.

PyTorch's counter knows the fused attention of GPUs; that of CPUs it counts as nothing.
"""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from ..core.cpu.flash import FLASH_BACKWARD, FLASH_FORWARD, HAS_FLASH


def count_flops() -> FlopCounterMode:
    """A context that counts the FLOPs of what runs in it: `get_total_flops()`."""
    mapping: dict[Any, Any] = {}
    if HAS_FLASH:
        mapping[FLASH_FORWARD.overloadpacket] = _forward
        mapping[FLASH_BACKWARD.overloadpacket] = _backward
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))
