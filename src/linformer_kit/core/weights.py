"""Attention weights, materialised. The fused kernel of the forward pass never stores them.

Legend: N queries, L keys, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(D)): query (..., H, N, D), key (..., G, L, D) -> (..., H, N, L).

    mask broadcasts to (..., H, N, L), True = visible. The weights of a query that sees no key are
    zero.
    """
    scores = query @ for_each_head(key, query.shape[-3]).mT * query.shape[-1] ** -0.5
    if mask is None:
        return scores.softmax(-1)
    # Not -inf: a row of nothing else would be NaN, and its gradient too.
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)


def for_each_head(rows: Tensor, heads: int) -> Tensor:
    """Keys or values (..., G, L, D) -> (..., H, L, D), repeated for the heads that share them."""
    groups = rows.shape[-3]
    return rows if groups == heads else rows.repeat_interleave(heads // groups, dim=-3)
