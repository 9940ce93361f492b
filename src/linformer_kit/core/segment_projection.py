"""Projections over segments: conv, mean and max.

Segments have the width ceil(max_length / k) and lie end to end, so an input of S positions gives
ceil(S / width) rows: k at max_length, fewer below, and more above it.

Legend: B batch, S context positions, R compressed rows, C channels, G key/value heads, D head size,
P sides (1 when E = F, else 2: keys, values), T heads with a matrix of their own (1 or G).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .numerics import at_least_float32, batched_matmul, exact_matmul, interpolate_keeping_norm
from .projection import Compression, Projection
from .visible_scale import visible_scale


class SegmentCompression(Compression):
    """E with the same taps in every segment: `taps` (P, T, width), segments laid end to end."""

    def __init__(
        self,
        taps: Tensor,
        *,
        length: int,
        mask: Tensor | None,
        norm: Literal["l2", "count"] | None,
    ) -> None:
        self.taps = taps
        self.width = taps.shape[-1]
        present = mask
        if mask is None:
            present = torch.ones(1, length, dtype=torch.bool, device=taps.device)
        assert present is not None
        self.segments = in_segments(present[..., None], self.width).squeeze(
            -1
        )  # (1 or B, R, width)
        self.keep = None if mask is None else self.segments.any(-1)
        self.scale = self._scale(norm, length)

    def _scale(self, norm: Literal["l2", "count"] | None, length: int) -> Tensor | None:
        """Keeps the size of a row whose segment is incomplete: (1 or B, P, T, R)."""
        complete = not torch.compiler.is_compiling() and length % self.width == 0
        if norm is None or (self.keep is None and complete):
            return None
        flat = self.taps.flatten(0, 1)  # (P*T, width)
        squares = at_least_float32(flat).square()
        present = self.segments.to(squares.dtype)  # (1 or B, R, width)
        if norm == "count":
            count = present.sum(-1, keepdim=True).clamp_min(1.0)
            scale = (self.width / count).expand(-1, -1, flat.shape[0])  # (1 or B, R, P*T)
        else:
            scale = visible_scale(squares.sum(-1), exact_matmul(present, squares.T))
        scale = scale.to(flat.dtype)
        return scale.unflatten(-1, self.taps.shape[:2]).permute(0, 2, 3, 1)

    def compress_input(self, x: Tensor) -> Tensor:
        segments = in_segments(x, self.width)  # (B, R, width, C)
        rows = self._filter(self.taps.flatten(0, 1), segments)  # (B, R, P*T, C)
        rows = rows.unflatten(2, self.taps.shape[:2]).permute(0, 2, 3, 1, 4)
        return rows if self.scale is None else rows * self.scale[..., None].to(rows.dtype)

    def compress_keys(self, rows: Tensor, side: int) -> Tensor:
        taps = self.taps[min(side, self.taps.shape[0] - 1)]  # (T, width)
        segments = in_segments(rows.flatten(2), self.width)  # (B, R, width, G*D)
        if taps.shape[0] == 1:
            result = self._filter(taps, segments).squeeze(2)  # (B, R, G*D)
            result = result.unflatten(2, rows.shape[2:]).transpose(1, 2)
        else:
            segments = segments.unflatten(3, rows.shape[2:])
            result = torch.einsum("gw,brwgd->bgrd", taps, segments)
        if self.scale is None:
            return result
        scale = self.scale[:, min(side, self.scale.shape[1] - 1), ..., None]
        return result * scale.to(result.dtype)

    @staticmethod
    def _filter(taps: Tensor, segments: Tensor) -> Tensor:
        """taps (F, width) over segments (B, R, width, C) -> (B, R, F, C)"""
        return batched_matmul(taps, segments.flatten(0, 1)).unflatten(0, segments.shape[:2])

    def row_sums(self) -> Tensor:
        sums = self.segments.to(self.taps.dtype) @ self.taps.flatten(0, 1).T  # (1 or B, R, P*T)
        sums = sums.unflatten(-1, self.taps.shape[:2]).permute(0, 2, 3, 1)
        return sums if self.scale is None else sums * self.scale


class MaxCompression(Compression):
    """The largest value of each segment. Not a matrix: it is defined on the input alone."""

    commutes = False

    def __init__(self, width: int, *, mask: Tensor | None) -> None:
        self.width = width
        self.mask = mask
        self.keep = None
        if mask is not None:
            self.keep = in_segments(mask[..., None], width).squeeze(-1).any(-1)

    def compress_input(self, x: Tensor) -> Tensor:
        lowest = torch.finfo(x.dtype).min
        if self.mask is not None:
            x = x.masked_fill(~self.mask[..., None], lowest)
        rows = in_segments(x, self.width, fill=lowest).amax(2)  # (B, R, C)
        if self.keep is not None:  # the lowest number must not be multiplied
            rows = rows.masked_fill(~self.keep[..., None], 0.0)
        return rows[:, None, None]


class SegmentProjection(Projection):
    """The kinds that cut the input into segments of `width` positions."""

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

    def __init__(
        self, *, k: int, max_length: int, sides: int, heads: int, keep_scale: bool = True
    ) -> None:
        super().__init__(k=k, max_length=max_length)
        self.keep_scale = keep_scale
        self.weight: Tensor = nn.Parameter(torch.empty(sides, heads, self.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        if self._width(rows) != self.width:
            raise ValueError(
                f"conv has one filter of {self.width} taps, and so one k: got k={self.k} and "
                f"{rows}. Use another sharing than 'layerwise', or the same k in every layer."
            )
        return SegmentCompression(
            self.weight, length=x.shape[1], mask=mask, norm="l2" if self.keep_scale else None
        )

    def resize(self, max_length: int) -> None:
        super().resize(max_length)
        self.weight = interpolate_keeping_norm(self.weight, self.width)


class MeanProjection(SegmentProjection):
    """The mean of the real positions in each segment. No parameters."""

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        width = self._width(rows)
        taps = x.new_full((1, 1, width), 1.0 / width)
        return SegmentCompression(taps, length=x.shape[1], mask=mask, norm="count")


class MaxProjection(SegmentProjection):
    """The largest value of each channel of X in each segment, before W_k and W_v. No parameters.

    The maximum is taken of the input, not of the keys: the two differ, and this one needs only k
    rows of W_k and W_v instead of n.
    """

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        return MaxCompression(self._width(rows), mask=mask)


def in_segments(x: Tensor, width: int, fill: float = 0.0) -> Tensor:
    """x (B, S, C) -> (B, R, width, C); the last segment is padded with `fill`. A view if S fits."""
    batch, length, channels = x.shape
    rows = (length + width - 1) // width
    missing = rows * width - length
    if torch.compiler.is_compiling() or missing:
        x = F.pad(x, (0, 0, 0, missing), value=fill)
    return x.reshape(batch, rows, width, channels)
