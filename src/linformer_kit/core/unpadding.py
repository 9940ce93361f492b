"""Removing padding: the tokens of each sample are moved to the front, in their order.

In a causal model nothing after the last token affects the tokens before it, so an unpadded sample
gives the same result as the sample alone, wherever its padding was.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Unpadding(NamedTuple):
    """A permutation that moves padding to the end, and its inverse."""

    order: Tensor  # (B, N): the padded position of each unpadded position
    length: Tensor  # (B): the number of tokens of each sample

    @classmethod
    def of(cls, mask: Tensor) -> Unpadding:
        """For a mask (B, N), True = a real token."""
        return cls(mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True), mask.sum(1))

    def unpad(self, x: Tensor) -> Tensor:
        """x (B, N, M) with the tokens first and zeros after them."""
        moved = x.gather(1, self.order[..., None].expand_as(x))
        after = torch.arange(x.shape[1], device=x.device) >= self.length[:, None]
        return moved.masked_fill(after[..., None], 0.0)

    def pad(self, y: Tensor) -> Tensor:
        """The inverse of `unpad`, with zeros at the padding."""
        after = torch.arange(y.shape[1], device=y.device) >= self.length[:, None]
        y = y.masked_fill(after[..., None], 0.0)
        return y.gather(1, self.order.argsort(dim=1)[..., None].expand_as(y))

    def pad_weights(self, weights: Tensor, *, columns: bool = False) -> Tensor:
        """Attention weights (B, H, N, L) of unpadded tokens, at the padded positions.

        `columns`: the L keys are tokens too. Zeros at the padding.
        """
        for axis in (2, 3) if columns else (2,):
            rows = weights.movedim(axis, 1)  # (B, N, ...)
            weights = self.pad(rows.flatten(2)).reshape(rows.shape).movedim(1, axis)
        return weights

    def unpad_weights(self, weights: Tensor, *, columns: bool = False) -> Tensor:
        """The inverse of `pad_weights`, with zeros after the tokens."""
        for axis in (2, 3) if columns else (2,):
            rows = weights.movedim(axis, 1)
            weights = self.unpad(rows.flatten(2)).reshape(rows.shape).movedim(1, axis)
        return weights
