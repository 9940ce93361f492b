"""Padding taken out: the tokens of each sample moved to the front, in their order.

A causal model reads from the left, so what stands behind the last token changes nothing, and a
packed sample is the sample alone: padding on the left, on the right or in between is all the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Packing(NamedTuple):
    """Where the tokens went."""

    order: Tensor  # (B, N): the old place of what stands in each place now
    length: Tensor  # (B): how many tokens each sample has

    def pack(self, x: Tensor) -> Tensor:
        """x (B, N, M) with the tokens first and zeros behind them."""
        packed = x.gather(1, self.order[..., None].expand_as(x))
        behind = torch.arange(x.shape[1], device=x.device) >= self.length[:, None]
        return packed.masked_fill(behind[..., None], 0.0)

    def unpack(self, y: Tensor) -> Tensor:
        """The inverse; zeros stay where the padding was."""
        behind = torch.arange(y.shape[1], device=y.device) >= self.length[:, None]
        y = y.masked_fill(behind[..., None], 0.0)
        return y.gather(1, self.order.argsort(dim=1)[..., None].expand_as(y))

    def unpack_weights(self, weights: Tensor, *, columns: bool = False) -> Tensor:
        """Attention weights (B, H, N, L) of packed tokens, at the places of the tokens.

        `columns` says that the L keys are tokens too. Zeros stay where the padding was.
        """
        for axis in (2, 3) if columns else (2,):
            rows = weights.movedim(axis, 1)  # (B, N, ...)
            weights = self.unpack(rows.flatten(2)).reshape(rows.shape).movedim(1, axis)
        return weights

    def pack_weights(self, weights: Tensor, *, columns: bool = False) -> Tensor:
        """The inverse of `unpack_weights`; zeros behind the tokens."""
        for axis in (2, 3) if columns else (2,):
            rows = weights.movedim(axis, 1)
            weights = self.pack(rows.flatten(2)).reshape(rows.shape).movedim(1, axis)
        return weights


def packing_of(mask: Tensor) -> Packing:
    """For a mask (B, N), True = a real token."""
    return Packing(mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True), mask.sum(1))
