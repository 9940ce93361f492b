"""Scaled dot-product attention by matrix products and a softmax: the weights are materialised.

Legend: B batch, N queries, L keys, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def hidden(dtype: torch.dtype) -> float:
    """The bias of a hidden key: its softmax is zero, and a query that sees nothing is not NaN, as
    it would be with -inf.
    """
    return max(-1e30, torch.finfo(dtype).min / 2)


def hidden_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `visible`, else the bias of a hidden key."""
    # Not torch.where of two numbers, which has the default dtype: -1e30 may not fit it.
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, hidden(dtype))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, heads*D) -> (B, heads, N, D), a view."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, N, D) -> (B, N, H*D); a view of the output of the fused kernel."""
    return x.transpose(1, 2).flatten(2)


def repeat_kv(rows: Tensor, heads: int) -> Tensor:
    """Keys or values (..., G, L, D) -> (..., H, L, D), repeated for the heads that share them."""
    groups = rows.shape[-3]
    return rows if groups == heads else rows.repeat_interleave(heads // groups, dim=-3)


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None = None
) -> Tensor:
    """softmax(Q K^T / sqrt(D) + bias): query (..., H, N, D), key (..., G, L, D) -> (..., H, N, L).

    mask and bias broadcast to (..., H, N, L), True = visible. A query whose mask shows no key has
    zero weights.
    """
    scores = query @ repeat_kv(key, query.shape[-3]).mT * query.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if mask is None:
        return scores.softmax(-1)
    # Not -inf: a row that is all -inf would be NaN, and so would its gradient.
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)


def plain_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    drop: float = 0.0,
) -> Tensor:
    """softmax(Q K^T / sqrt(D) + bias) V: query (B, H, N, D), key and value (B, G, L, D) ->
    (B, H, N, D). `drop` is the dropout rate of single weights.
    """
    if causal:
        shape = query.shape[-2], key.shape[-2]
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    weights = attention_weights(query, key, mask, bias)
    if drop:
        weights = F.dropout(weights, drop)
    return weights @ repeat_kv(value, query.shape[-3])


def zero_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """x (B, N, C) with zeros where mask (B, N) is False."""
    return x if mask is None else x.masked_fill(~mask[..., None], 0.0)
