"""Scaled dot-product attention on the fused kernel, with derivatives of every order.

The fused kernel has a first derivative in reverse mode only. Under a transform of torch.func and in
forward mode `plain_sdpa` is used instead; on a CPU `cpu/flash.py` adds the second derivative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from .cpu.flash import flash_with_second_derivative, uses_flash
from .cpu.predicate import eager_on_cpu, under_transform
from .plain_sdpa import plain_sdpa

if TYPE_CHECKING:
    from torch import Tensor


def sdpa(
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
    (B, H, N, D).

    mask broadcasts to (B, H, N, L), True = visible; or a `bias` does, which is added to the scores.
    `drop` is the dropout rate of single weights, which the fused kernel does not support.
    """
    if under_transform():
        return plain_sdpa(query, key, value, mask=mask, bias=bias, causal=causal, drop=drop)
    if torch.is_grad_enabled() and eager_on_cpu(query) and not drop:
        if torch.is_autocast_enabled("cpu") and query.dtype != torch.float64:
            # As autocast does for scaled_dot_product_attention.
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        shown = mask if bias is None else bias
        learned_bias = bias is not None and bias.requires_grad  # the kernel has no gradient for it
        if not learned_bias and uses_flash(query, key, value, shown, causal):
            return flash_with_second_derivative(query, key, value, mask, bias, causal)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask if bias is None else bias,
        is_causal=causal,
        dropout_p=drop,
        enable_gqa=key.shape[1] != query.shape[1],
    )
