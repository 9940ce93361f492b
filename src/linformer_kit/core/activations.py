"""Activations of the feed-forward part by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

Activation = Literal["gelu", "gelu_tanh", "relu", "swiglu"]


def swiglu(hidden: Tensor) -> Tensor:
    """silu(a) * b for hidden = [a, b] (Shazeer 2020): halves the width."""
    gate, value = hidden.chunk(2, dim=-1)
    return F.silu(gate) * value


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of gelu, called gelu_new in transformers."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "swiglu": swiglu,
}
