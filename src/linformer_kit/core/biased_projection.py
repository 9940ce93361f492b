"""A learned E whose rows have a bias, as in models of linformer-pytorch; the paper has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .projection import LinearProjection

if TYPE_CHECKING:
    from torch import Tensor

    from .projection import Compression


class BiasedProjection(LinearProjection):
    """Row j is E_j X W + bias_j, with `bias` (P, T, k) added to every channel."""

    def __init__(self, *, k: int, sides: int, heads: int, **options: Any) -> None:
        super().__init__(k=k, sides=sides, heads=heads, **options)
        self.bias = nn.Parameter(torch.zeros(sides, heads, k))

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        result = super().forward(x, mask, rows=rows)
        result.bias = self.bias if rows is None else self.bias[:, :, :rows]
        return result

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "bias"):  # not before it exists: the base class resets itself
            nn.init.zeros_(self.bias)
