"""Activations of the feed-forward part by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

Activation = Literal["gelu", "relu", "swiglu"]


def swiglu(hidden: Tensor) -> Tensor:
    """silu(a) * b for hidden = [a, b] (Shazeer 2020): halves the width."""
    gate, value = hidden.chunk(2, dim=-1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "swiglu": swiglu,
}
