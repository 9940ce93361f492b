"""Projections over segments: conv, mean, max and pool.

Segments have the width ceil(max_length / k) and lie end to end, so an input of S positions gives
ceil(S / width) rows: k at max_length, fewer below, and more above it.

A row of `pool` should get the score log sum_i exp(q . k_i) of the keys k_i of its segment. To first
order in q around a fixed query u this is

    q . k~ + H(p),   p = softmax over i of (u . k_i),   k~ = sum_i p_i k_i,

with the entropy H(p) = -sum_i p_i log p_i. So the best single row is the mean weighted by p, which
counts as exp H(p) positions. With u = 0 this is `mean`, which counts as the positions of its
segment. u . k_i is x_i . w plus a constant, which does not change p, with w = W_k^T u: the
parameters are the w of each head.

Legend: B batch, S positions of a span, R compressed rows, C channels, G key/value heads, D head
size, M model size, P sides (1 when E = F, else 2: keys, values), T heads with weights of their own
(1 or G).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .numerics import at_least_float32, batched_matmul, exact_matmul, interpolate_keeping_norm
from .projection import Compression, Projection, Span
from .visible_scale import visible_scale

if TYPE_CHECKING:
    from collections.abc import Sequence


class SegmentCompression(Compression):
    """E with the same taps in every segment: `taps` (P, T, width), segments laid end to end.

    norm: what keeps the size of a row whose segment is incomplete: the norm of the taps at real
    positions (`l2`), or their `count`.
    """

    def __init__(self, taps: Tensor, span: Span, *, norm: Literal["l2", "count"] | None) -> None:
        self.taps, self.span, self.norm = taps, span, norm
        (self.sides, self.heads), self.width = taps.shape[:2], taps.shape[-1]
        real = self._segments(span.real(taps.device)[..., None])
        self.segments = real.squeeze(-1)  # (1 or B, rows of the span, width)
        complete = not torch.compiler.is_compiling() and span.length % self.width == 0
        if complete and span.mask is None:
            return
        present = self.segments.to(torch.promote_types(taps.dtype, torch.float32))
        count = present.sum(-1)[:, None, None]  # (1 or B, 1, 1, rows)
        self.statistics = [self._place(count, 3)]
        if norm == "l2":
            visible = exact_matmul(present, self._squares().T)  # (1 or B, rows, P*T)
            self.statistics.append(self._place(visible, 1))

    def finish(self, statistics: Sequence[Tensor]) -> None:
        if not statistics:
            return
        count, dtype = statistics[0], self.taps.dtype
        if self.span.mask is not None:
            self.keep = count[:, 0, 0] > 0
        if self.norm == "count":
            self.scale = (self.width / count.clamp_min(1.0)).to(dtype)
        elif self.norm == "l2":
            scale = visible_scale(self._squares().sum(-1), statistics[1]).to(dtype)
            self.scale = self._by_side(scale)

    def _squares(self) -> Tensor:
        return at_least_float32(self.taps.flatten(0, 1)).square()  # (P*T, width)

    def _segments(self, x: Tensor) -> Tensor:
        """x (B, S, C) -> (B, rows of the span, width, C): the first and the last may be cut."""
        before = self.span.start % self.width
        return in_segments(F.pad(x, (0, 0, before, 0)) if before else x, self.width)

    def _place(self, rows: Tensor, dim: int) -> Tensor:
        """The rows of the span among those of all spans."""
        if self.span.highest is None:
            return rows
        first = self.span.start // self.width
        after = -(-self.span.length // self.width) - first - rows.shape[dim]
        return F.pad(rows, (0, 0) * (rows.dim() - 1 - dim) + (first, after))

    def _by_side(self, rows: Tensor) -> Tensor:
        """(B, rows, P*T, ...) -> (B, P, T, rows, ...)"""
        return rows.unflatten(2, (self.sides, self.heads)).movedim(1, 3)

    def input_sums(self, x: Tensor) -> Tensor:
        rows = self._filter(self.taps.flatten(0, 1), self._segments(x))  # (B, rows, P*T, C)
        return self._place(self._by_side(rows), 3)

    def key_sums(self, rows: Tensor, side: int) -> Tensor:
        taps = self.taps[min(side, self.sides - 1)]  # (T, width)
        segments = self._segments(rows.flatten(2))  # (B, rows, width, G*D)
        if self.heads == 1:
            result = self._filter(taps, segments).squeeze(2)  # (B, rows, G*D)
            result = result.unflatten(2, rows.shape[2:]).transpose(1, 2)
        else:
            segments = segments.unflatten(3, rows.shape[2:])
            result = torch.einsum("gw,brwgd->bgrd", taps, segments)
        return self._place(result, 2)

    @staticmethod
    def _filter(taps: Tensor, segments: Tensor) -> Tensor:
        """taps (F, width) over segments (B, R, width, C) -> (B, R, F, C)"""
        return batched_matmul(taps, segments.flatten(0, 1)).unflatten(0, segments.shape[:2])

    def position_sums(self) -> Tensor:
        sums = self.segments.to(self.taps.dtype) @ self.taps.flatten(0, 1).T  # (1 or B, rows, P*T)
        return self._place(self._by_side(sums), 3)


class MaxCompression(Compression):
    """The largest value of each segment. Not a matrix: it is defined on the input alone."""

    commutes = False

    def __init__(self, width: int, *, mask: Tensor | None) -> None:
        self.width = width
        self.mask = mask
        if mask is not None:
            self.keep = in_segments(mask[..., None], width).squeeze(-1).any(-1)

    def input_sums(self, x: Tensor) -> Tensor:
        lowest = torch.finfo(x.dtype).min
        if self.mask is not None:
            x = x.masked_fill(~self.mask[..., None], lowest)
        rows = in_segments(x, self.width, fill=lowest).amax(2)  # (B, R, C)
        if self.keep is not None:  # the lowest number must not be multiplied
            rows = rows.masked_fill(~self.keep[..., None], 0.0)
        return rows[:, None, None]


class PooledSegments(Compression):
    """E from scores (B, S, P, T), by a softmax over the positions of each segment of `width`."""

    def __init__(self, scores: Tensor, width: int, *, mask: Tensor | None) -> None:
        batch, length, self.sides, self.heads = scores.shape
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
        scores, weights = (each[..., : self.heads] for each in (self.scores, self.weights))
        entropy = scores.logsumexp(2) - (weights * self._without_hidden(scores)).sum(2)
        if self.hidden is not None:
            entropy = entropy.masked_fill(self.hidden.all(2), 0.0)
        return entropy.transpose(1, 2)

    def input_sums(self, x: Tensor) -> Tensor:
        segments = in_segments(x, self.width)  # (B, R, width, C)
        rows = self.weights.to(x.dtype).transpose(2, 3) @ segments  # (B, R, P*T, C)
        return rows.unflatten(2, (self.sides, self.heads)).movedim(1, 3)

    def key_sums(self, rows: Tensor, side: int) -> Tensor:
        first = min(side, self.sides - 1) * self.heads
        weights = self.weights[..., first : first + self.heads].to(rows.dtype)  # (B, R, width, T)
        segments = in_segments(rows.flatten(2), self.width)  # (B, R, width, G*D)
        segments = segments.unflatten(3, rows.shape[2:])
        return (weights[..., None] * segments).sum(2).transpose(1, 2)

    def position_sums(self) -> Tensor:
        sums = self.weights.sum(2).unflatten(2, (self.sides, self.heads))
        return sums.movedim(1, 3).to(self.dtype)  # 1, or 0 for padding


class SegmentProjection(Projection):
    """The kinds that cut the input into segments of `width` positions."""

    of_segments = True

    def __init__(self, *, k: int, max_length: int) -> None:
        super().__init__(k=k, max_length=max_length)
        self.width = math.ceil(max_length / k)

    def resize(self, max_length: int) -> None:
        self.width = math.ceil(max_length / self.k)
        super().resize(max_length)

    def _width(self, rows: int | None) -> int:
        """Layers that share this module and have a smaller k have wider segments."""
        assert self.max_length is not None
        return self.width if rows is None else math.ceil(self.max_length / rows)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, width={self.width}"


class ConvProjection(SegmentProjection):
    """A filter of `width` taps moved by `width`: `weight` (P, T, width).

    All channels have the same filter, so it commutes with W_k. W_k and W_v then mix the channels,
    as the pointwise half of a separable convolution does.
    """

    learned_row_bias = "one"  # the number of rows depends on the input

    def __init__(
        self, *, k: int, max_length: int, sides: int, heads: int, keep_scale: bool = True
    ) -> None:
        super().__init__(k=k, max_length=max_length)
        self.keep_scale = keep_scale
        self.weight: Tensor = nn.Parameter(torch.empty(sides, heads, self.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)

    def partial(self, x: Tensor, span: Span, *, rows: int | None = None) -> Compression:
        if self._width(rows) != self.width:
            raise ValueError(
                f"conv has one filter of {self.width} taps, and so one k: got k={self.k} and "
                f"{rows}. Use another sharing than 'layerwise', or the same k in every layer."
            )
        return SegmentCompression(self.weight, span, norm="l2" if self.keep_scale else None)

    def resize(self, max_length: int) -> None:
        super().resize(max_length)
        self.weight = interpolate_keeping_norm(self.weight, self.width)


class MeanProjection(SegmentProjection):
    """The mean of the real positions in each segment. No parameters."""

    def partial(self, x: Tensor, span: Span, *, rows: int | None = None) -> Compression:
        width = self._width(rows)
        return SegmentCompression(x.new_full((1, 1, width), 1.0 / width), span, norm="count")


class MaxProjection(SegmentProjection):
    """The largest value of each channel of X in each segment, before W_k and W_v. No parameters.

    The maximum is taken of the input, not of the keys: the two differ, and this one needs only k
    rows of W_k and W_v instead of n.
    """

    adds_over_spans = False
    is_matrix = False

    def partial(self, x: Tensor, span: Span, *, rows: int | None = None) -> Compression:
        return MaxCompression(self._width(rows), mask=span.mask)


class PoolProjection(SegmentProjection):
    """Row j is the mean of segment j weighted by softmax over its positions of x . w: `weight`
    (P, T, M). It starts at 0, as `mean`. Padding has no weight.
    """

    adds_over_spans = False
    by_content = True

    def __init__(self, *, k: int, max_length: int, dim: int, sides: int, heads: int) -> None:
        super().__init__(k=k, max_length=max_length)
        self.weight = nn.Parameter(torch.zeros(sides, heads, dim))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def partial(self, x: Tensor, span: Span, *, rows: int | None = None) -> Compression:
        scores = (x @ self.weight.flatten(0, 1).T).unflatten(2, self.weight.shape[:2])
        return PooledSegments(scores, self._width(rows), mask=span.mask)


def in_segments(x: Tensor, width: int, fill: float = 0.0) -> Tensor:
    """x (B, S, C) -> (B, R, width, C); the last segment is padded with `fill`. A view if S fits."""
    batch, length, channels = x.shape
    rows = (length + width - 1) // width
    missing = rows * width - length
    if torch.compiler.is_compiling() or missing:
        x = F.pad(x, (0, 0, 0, missing), value=fill)
    return x.reshape(batch, rows, width, channels)
