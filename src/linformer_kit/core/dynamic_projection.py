"""The content-based projection: E is computed from the input.

Legend: B batch, S context positions, R compressed rows, M model size, P sides, T heads with a
matrix of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .numerics import batched_matmul
from .projection import Compression, MatrixCompression, Projection


class DynamicProjection(Projection):
    """Content-based: row j is the mean of X weighted by softmax over positions of X W[j].

    `weight` (P, T, k, M). As in Transformer-LS (Zhu et al. 2021). Padding has no weight.
    """

    def __init__(self, *, k: int, dim: int, sides: int, heads: int) -> None:
        super().__init__(k=k, max_length=None)
        self.weight = nn.Parameter(torch.empty(sides, heads, k, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        weight = self.weight if rows is None else self.weight[:, :, :rows]
        sides, heads, _, dim = weight.shape
        scores = batched_matmul(weight.reshape(-1, dim), x.transpose(1, 2))  # (B, P*T*R, S)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        matrix = scores.softmax(-1).to(scores.dtype)
        if mask is not None:  # a sample of padding alone has no weight at all
            matrix = matrix.masked_fill(~mask[:, None], 0.0)
        return MatrixCompression(matrix, sides=sides, heads=heads, mask=mask)

    def resize(self, max_length: int) -> None:
        """Nothing to do: there is no maximum."""
