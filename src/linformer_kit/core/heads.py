"""What every attention with heads needs: their sizes, their linear maps, and the fused kernel.

Legend: B batch, N queries, L keys, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

from typing import TypedDict

import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .dropout import drop_rows


class HeadOptions(TypedDict):
    """What the attentions of one model have in common."""

    dim: int
    num_heads: int
    head_dim: int | None
    num_kv_heads: int | None
    bias: bool
    out_bias: bool
    dropout: float


def is_plain(linear: nn.Module) -> bool:
    """Whether a linear layer is nothing but its weight and bias: no adapter, no hook."""
    hooked = linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks
    return type(linear) is nn.Linear and not hooked


def check_heads(
    dim: int, num_heads: int, head_dim: int | None, num_kv_heads: int | None
) -> tuple[int, int]:
    """(head_dim, num_kv_heads) with their defaults, or the error."""
    checks.positive("dim", dim)
    checks.positive("num_heads", num_heads)
    if head_dim is None:
        if dim % num_heads:
            raise ValueError(
                f"dim must be divisible by num_heads: got dim={dim}, num_heads={num_heads}. "
                "Change one of them, or give head_dim."
            )
        head_dim = dim // num_heads
    checks.positive("head_dim", head_dim)
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    checks.positive("num_kv_heads", num_kv_heads)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be divisible by num_kv_heads: got num_heads={num_heads}, "
            f"num_kv_heads={num_kv_heads}. Use a divisor of num_heads, 1 for a single one."
        )
    return head_dim, num_kv_heads


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    drop: float = 0.0,
) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V on the fused kernel.

    query (B, N, H, D), key and value (B, L, G, D) -> (B, N, H, D). mask broadcasts to (B, H, N, L),
    True = visible. `drop` leaves a value out for all queries of a sample and key/value head at
    once, which keeps the expectation and the kernel.
    """
    value = drop_rows(value, drop, training=True)
    return F.scaled_dot_product_attention(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        enable_gqa=query.shape[2] != key.shape[2],
    ).transpose(1, 2)
