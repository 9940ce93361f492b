"""Attention weights, materialised: for looking inside. No forward pass makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def attention_weights(query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(D)): query (..., N, H, D), key (..., L, G, D) -> (..., H, N, L).

    mask broadcasts to (..., H, N, L), True = visible; some key must be visible to each query.
    """
    key = key.repeat_interleave(query.shape[-2] // key.shape[-2], dim=-2)
    scores = query.transpose(-3, -2) @ key.transpose(-3, -2).mT * query.shape[-1] ** -0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(-1)
