"""E and F of one batch, applied: S rows become R, on either side of W_k.

A `Shortening` is what a projection makes of an input. `inputs(x)` shortens X itself, for the order
(E X) W_k; `keys(values, side)` shortens what has been through W_k already, for E (X W_k). A bias
b of W_k adds (E 1) b to the shortened rows in both orders: `row_sums` is E 1.

Legend: B batch, S context positions, R shortened rows, C channels, G key/value heads, D head size,
P sides (1 when E = F, else 2: key, value), T heads that have a matrix of their own (1 or G).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .fastpath import needs_plain_backward

_MIN_SHARE = 1e-9  # of the square of a row's norm
MAX_SCALE = _MIN_SHARE**-0.5  # 31,623: a float16, and above the square root of any max_length


class Shortening:
    """Base. `keep` (B, R) is False at rows that stand for padding alone; None: all are real."""

    keep: Tensor | None = None
    commutes = True  # whether E (X W) = (E X) W

    def inputs(self, x: Tensor) -> Tensor:
        """x (B, S, C) -> (B, P, T, R, C): every matrix applied to the same rows."""
        raise NotImplementedError

    def inputs_beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x and `inputs(x)`. Backward accumulates into the gradient of the returned x in place.

        So that x must have exactly one consumer, whose backward makes a new tensor of its gradient.
        Only where `use_cpu_fast_path` says yes.
        """
        return x, self.inputs(x)

    def keys(self, values: Tensor, side: int) -> Tensor:
        """values (B, S, G, D) -> (B, G, R, D), by the matrices of side 0 (keys) or 1 (values)."""
        raise NotImplementedError

    def row_sums(self) -> Tensor:
        """E 1, with 1 only at real positions: (1 or B, P, T, R)."""
        raise NotImplementedError


class MatrixShortening(Shortening):
    """A dense E: `matrix` (P*T*R, S), or (B, P*T*R, S) where it depends on the input."""

    def __init__(
        self,
        matrix: Tensor,
        *,
        sides: int,
        heads: int,
        scale: Tensor | None = None,
        mask: Tensor | None,
    ) -> None:
        self.matrix = matrix
        self.sides, self.heads, self.rows = sides, heads, matrix.shape[-2] // (sides * heads)
        self.scale = scale  # (1 or B, P, T, R), multiplies the rows of E
        self.mask = mask
        self.sums: Tensor | None = None  # of the rows of E, where `inputs_beside` has made them

    def inputs(self, x: Tensor) -> Tensor:
        return self._scaled(batched_product(self.matrix, x))

    def inputs_beside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.matrix.dim() == 3 or self.matrix.dtype != x.dtype:
            return super().inputs_beside(x)
        x, rows, self.sums = _Beside.apply(x, self.matrix)
        return x, self._scaled(rows)

    def _scaled(self, rows: Tensor) -> Tensor:
        """(B, P*T*R, C) -> (B, P, T, R, C)"""
        rows = rows.unflatten(1, (self.sides, self.heads, self.rows))
        return rows if self.scale is None else rows * self.scale[..., None].to(rows.dtype)

    def keys(self, values: Tensor, side: int) -> Tensor:
        side = min(side, self.sides - 1)
        matrix = self.matrix.narrow(-2, side * self.heads * self.rows, self.heads * self.rows)
        if self.heads == 1:
            rows = batched_product(matrix, values.flatten(2))  # (B, R, G*D)
            rows = rows.unflatten(2, values.shape[2:]).transpose(1, 2)
        elif matrix.dim() == 3:
            rows = matrix.unflatten(1, (self.heads, self.rows)) @ values.transpose(1, 2)
        else:  # one product a head for the whole batch: `@` would copy the matrix for each sample
            batch, _, _, size = values.shape
            columns = values.permute(2, 1, 0, 3).flatten(2)  # (G, S, B*D)
            rows = torch.bmm(matrix.unflatten(0, (self.heads, self.rows)), columns)
            rows = rows.unflatten(2, (batch, size)).permute(2, 0, 1, 3)
        return rows if self.scale is None else rows * self.scale[:, side, ..., None].to(rows.dtype)

    def row_sums(self) -> Tensor:
        if self.mask is not None and self.matrix.dim() == 2:
            sums = self.mask.to(self.matrix.dtype) @ self.matrix.T  # (B, P*T*R)
        else:  # dynamic: no weight on padding already
            sums = self.matrix.sum(-1) if self.sums is None else self.sums  # (P*T*R) or (B, P*T*R)
        sums = sums.view(-1, self.sides, self.heads, self.rows)
        return sums if self.scale is None else sums * self.scale


class WindowShortening(Shortening):
    """E with the same taps in every window: `taps` (P, T, width), windows laid end to end."""

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
        self.windows = _in_windows(present[..., None], self.width).squeeze(-1)  # (1 or B, R, width)
        self.keep = None if mask is None else self.windows.any(-1)
        self.scale = self._scale(norm, length)

    def _scale(self, norm: Literal["l2", "count"] | None, length: int) -> Tensor | None:
        """What keeps the size of a row whose window is not complete: (1 or B, P, T, R)."""
        complete = not torch.compiler.is_compiling() and length % self.width == 0
        if norm is None or (self.keep is None and complete):
            return None
        flat = self.taps.flatten(0, 1)  # (P*T, width)
        squares = at_least_float32(flat).square()
        present = self.windows.to(squares.dtype)  # (1 or B, R, width)
        if norm == "count":
            count = present.sum(-1, keepdim=True).clamp_min(1.0)
            scale = (self.width / count).expand(-1, -1, flat.shape[0])  # (1 or B, R, P*T)
        else:
            scale = visible_scale(squares.sum(-1), present @ squares.T)
        scale = scale.to(flat.dtype)
        return scale.unflatten(-1, self.taps.shape[:2]).permute(0, 2, 3, 1)

    def inputs(self, x: Tensor) -> Tensor:
        windows = _in_windows(x, self.width)  # (B, R, width, C)
        rows = self._filter(self.taps.flatten(0, 1), windows)  # (B, R, P*T, C)
        rows = rows.unflatten(2, self.taps.shape[:2]).permute(0, 2, 3, 1, 4)
        return rows if self.scale is None else rows * self.scale[..., None].to(rows.dtype)

    def keys(self, values: Tensor, side: int) -> Tensor:
        taps = self.taps[min(side, self.taps.shape[0] - 1)]  # (T, width)
        windows = _in_windows(values.flatten(2), self.width)  # (B, R, width, G*D)
        if taps.shape[0] == 1:
            rows = self._filter(taps, windows).squeeze(2)  # (B, R, G*D)
            rows = rows.unflatten(2, values.shape[2:]).transpose(1, 2)
        else:
            windows = windows.unflatten(3, values.shape[2:])
            rows = torch.einsum("gw,brwgd->bgrd", taps, windows)
        if self.scale is None:
            return rows
        return rows * self.scale[:, min(side, self.scale.shape[1] - 1), ..., None].to(rows.dtype)

    @staticmethod
    def _filter(taps: Tensor, windows: Tensor) -> Tensor:
        """taps (F, width) over windows (B, R, width, C) -> (B, R, F, C)"""
        return batched_product(taps, windows.flatten(0, 1)).unflatten(0, windows.shape[:2])

    def row_sums(self) -> Tensor:
        sums = self.windows.to(self.taps.dtype) @ self.taps.flatten(0, 1).T  # (1 or B, R, P*T)
        sums = sums.unflatten(-1, self.taps.shape[:2]).permute(0, 2, 3, 1)
        return sums if self.scale is None else sums * self.scale


class MaxShortening(Shortening):
    """The largest value of each window. Not a matrix: it is defined on the input alone."""

    commutes = False

    def __init__(self, width: int, *, mask: Tensor | None) -> None:
        self.width = width
        self.mask = mask
        self.keep = None
        if mask is not None:
            self.keep = _in_windows(mask[..., None], width).squeeze(-1).any(-1)

    def inputs(self, x: Tensor) -> Tensor:
        lowest = torch.finfo(x.dtype).min
        if self.mask is not None:
            x = x.masked_fill(~self.mask[..., None], lowest)
        rows = _in_windows(x, self.width, fill=lowest).amax(2)  # (B, R, C)
        if self.keep is not None:  # the lowest number is finite, but not fit to be multiplied
            rows = rows.masked_fill(~self.keep[..., None], 0.0)
        return rows[:, None, None]


class _Beside(torch.autograd.Function):
    """x, E x and E 1. Backwards, what E x adds to the gradient of x is added where that stands
    already: it never takes the memory of another x. Nor does E 1 take that of another E.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, matrix)
        ctx.set_materialize_grads(False)
        return x.view_as(x), batched_product(matrix, x), matrix.sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        x, matrix = ctx.saved_tensors
        grad_x, grad_rows, grad_sums = grads
        if grad_rows is None:
            return grad_x, None if grad_sums is None else grad_sums[:, None].expand_as(matrix)
        if needs_plain_backward(grad_rows):
            more = batched_product(matrix.T, grad_rows)
            grad_x = more if grad_x is None else grad_x + more
            grad_matrix = (grad_rows @ x.mT).sum(0)
            return grad_x, grad_matrix if grad_sums is None else grad_matrix + grad_sums[:, None]
        if not ctx.needs_input_grad[0]:
            grad_x = None
        elif grad_x is None:
            grad_x = batched_product(matrix.T, grad_rows)
        else:
            for sample, rows in zip(grad_x, grad_rows, strict=True):
                sample.addmm_(matrix.T, rows)
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        if grad_sums is None:
            grad_matrix = torch.zeros_like(matrix)
        else:
            grad_matrix = (
                grad_sums[:, None].expand_as(matrix).clone(memory_format=torch.contiguous_format)
            )
        for sample, rows in zip(x, grad_rows, strict=True):
            grad_matrix.addmm_(rows, sample.T)
        return grad_x, grad_matrix


def at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def visible_scale(whole: Tensor, visible: Tensor) -> Tensor:
    """min(|row| / |visible part of the row|, MAX_SCALE), from the squares of the two norms.

    It keeps the variance of a sum that lacks positions. The bound matters where the visible part
    has almost no weight: there the row is MAX_SCALE times its visible part, so a visible part of
    exactly zero gives zero, and the gradient is finite. A row of zeros has the scale 1.
    """
    floor = whole * _MIN_SHARE + torch.finfo(whole.dtype).tiny
    ratio = whole / torch.maximum(visible, floor)
    return ratio.masked_fill(whole == 0, 1.0).sqrt()


def _in_windows(x: Tensor, width: int, fill: float = 0.0) -> Tensor:
    """x (B, S, C) -> (B, R, width, C); the last window is filled up. A view if S fits."""
    batch, length, channels = x.shape
    rows = (length + width - 1) // width
    missing = rows * width - length
    if torch.compiler.is_compiling() or missing:
        x = F.pad(x, (0, 0, 0, missing), value=fill)
    return x.reshape(batch, rows, width, channels)


def batched_product(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix (R, S) or (B, R, S) times x (B, S, C) -> (B, R, C).

    An explicit bmm: for a matrix without a batch, `@` would make a transposed copy of x.
    """
    if matrix.dim() == 2:
        matrix = matrix.expand(x.shape[0], -1, -1)
    return torch.bmm(matrix, x)
