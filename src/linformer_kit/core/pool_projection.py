"""Attention pooling of segments: each row is a mean of its segment, weighted by content.

A row that stands for the keys k_i of a segment should get the score log sum_i exp(q . k_i). To
first order in q around a fixed query u this is

    q . k~ + H(p),   p = softmax over i of (u . k_i),   k~ = sum_i p_i k_i,

with the entropy H(p) = -sum_i p_i log p_i. So the best single row is the mean weighted by p, which
counts as exp H(p) positions. With u = 0 this is `mean`, which counts as the positions of its
segment. u . k_i is x_i . w plus a constant, which does not change p, with w = W_k^T u: the
parameters are the w of each head.

Legend: B batch, S positions, R compressed rows, C channels, G key/value heads, D head size, M model
size, P sides (1 when E = F, else 2: keys, values), T heads with weights of their own (1 or G).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .numerics import at_least_float32
from .projection import Compression
from .segment_projection import SegmentProjection, in_segments


class PooledSegments(Compression):
    """E from scores (B, S, P, T), by a softmax over the positions of each segment of `width`."""

    def __init__(self, scores: Tensor, width: int, *, mask: Tensor | None) -> None:
        batch, length, *self.sizes = scores.shape
        self.width, self.dtype = width, scores.dtype
        self.scores = in_segments(at_least_float32(scores).flatten(2), width)  # (B, R, width, P*T)
        self.hidden: Tensor | None = None  # (B, R, width, 1): no position, or padding
        complete = not torch.compiler.is_compiling() and length % width == 0
        if mask is not None or not complete:
            shown = scores.new_ones(batch, length, dtype=torch.bool) if mask is None else mask
            self.hidden = ~in_segments(shown[..., None], width)
            self.keep = None if mask is None else ~self.hidden.all(2).squeeze(-1)  # (B, R)
            self.scores = self.scores.masked_fill(self.hidden, torch.finfo(self.scores.dtype).min)
        self.weights = self._without_hidden(self.scores.softmax(2))  # (B, R, width, P*T)

    def _without_hidden(self, rows: Tensor) -> Tensor:
        return rows if self.hidden is None else rows.masked_fill(self.hidden, 0.0)

    @property
    def row_bias(self) -> Tensor:  # type: ignore[override]  # computed only beside exact keys
        """The entropy of the weights of keys, (B, T, R)."""
        heads = self.sizes[1]
        scores, weights = self.scores[..., :heads], self.weights[..., :heads]
        entropy = scores.logsumexp(2) - (weights * self._without_hidden(scores)).sum(2)
        if self.hidden is not None:
            entropy = entropy.masked_fill(self.hidden.all(2), 0.0)
        return entropy.transpose(1, 2)

    def compress_input(self, x: Tensor) -> Tensor:
        segments = in_segments(x, self.width)  # (B, R, width, C)
        rows = self.weights.to(x.dtype).transpose(2, 3) @ segments  # (B, R, P*T, C)
        return rows.unflatten(2, self.sizes).permute(0, 2, 3, 1, 4)

    def compress_keys(self, rows: Tensor, side: int) -> Tensor:
        sides, heads = self.sizes
        first = min(side, sides - 1) * heads
        weights = self.weights[..., first : first + heads].to(rows.dtype)  # (B, R, width, T)
        segments = in_segments(rows.flatten(2), self.width)  # (B, R, width, G*D)
        segments = segments.unflatten(3, rows.shape[2:])
        return (weights[..., None] * segments).sum(2).transpose(1, 2)

    def row_sums(self) -> Tensor:
        sums = self.weights.sum(2).unflatten(2, self.sizes)  # (B, R, P, T): 1, or 0 for padding
        return sums.permute(0, 2, 3, 1).to(self.dtype)


class PoolProjection(SegmentProjection):
    """Row j is the mean of segment j weighted by softmax over its positions of x . w: `weight`
    (P, T, M). It starts at 0, as `mean`. Padding has no weight.
    """

    def __init__(self, *, k: int, max_length: int, dim: int, sides: int, heads: int) -> None:
        super().__init__(k=k, max_length=max_length)
        self.weight = nn.Parameter(torch.zeros(sides, heads, dim))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        scores = (x @ self.weight.flatten(0, 1).T).unflatten(2, self.weight.shape[:2])
        return PooledSegments(scores, self._width(rows), mask=mask)
