"""The attention weights of a layer with a window, which its forward pass never materialises.

Legend: B batch, N positions, R compressed rows, H heads, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from . import checks
from .plain_sdpa import attention_weights, hidden, hidden_bias, join_heads, repeat_kv, zero_padding
from .window_attention import not_cross_attention, window_heads
from .window_rows import row_bias_of_chunks, score_bias, segment_of, used_window

if TYPE_CHECKING:
    from .attention import LinformerAttention
    from .projection import Projection


def trace(
    layer: LinformerAttention,
    x: Tensor,
    mask: Tensor | None,
    context: Tensor | None,
    projection: Projection | None,
) -> tuple[Tensor, Tensor]:
    """As forward, and the attention weights (B, H, N, R + N): to the rows, then to the positions.

    Those of full attention are materialised: the weight of a position that is not seen is zero.
    """
    checks.sequence("x", x, layer.dim, mask=mask)
    if context is not None:
        raise not_cross_attention(layer)
    query, key, value, rows = window_heads(layer, x, mask, projection)
    length, window = x.shape[1], used_window(layer)
    seen = min(layer.global_tokens, length)
    position = torch.arange(length, device=x.device)
    of_global = position < seen
    visible = of_global | of_global[:, None]
    if window:
        chunk = position // window
        visible = visible | ((chunk[:, None] - chunk).abs() <= 1)
    visible = visible[None] if mask is None else visible & mask[:, None]  # (B or 1, N, N)
    bias = hidden_bias(visible, x.dtype)[:, None]  # (B or 1, 1, N, N)
    if rows is not None:
        of_rows = row_bias_of_chunks(
            length,
            rows.key.shape[2],
            mask,
            score_bias(layer.row_bias, rows, layer.num_heads),
            window=window,
            seen=seen,
            segment=segment_of(layer, projection),
            like=query,
        )
        of_rows = of_rows[:, position // window if window else position * 0].transpose(1, 2)
        of_rows = of_rows.masked_fill(of_global[:, None], hidden(x.dtype))  # (B or 1, H or 1, N, R)
        sizes = (max(len(bias), len(of_rows)), of_rows.shape[1], length, -1)
        bias = torch.cat((of_rows.expand(sizes), bias.expand(sizes)), dim=3)
        key = torch.cat((rows.key.transpose(1, 2), key), dim=1)
        value = torch.cat((rows.value.transpose(1, 2), value), dim=1)
    weights = attention_weights(query.transpose(1, 2), key.transpose(1, 2), None, bias)
    if mask is not None:
        weights = weights.masked_fill(~mask[:, None, :, None], 0.0)
    used = weights
    if layer.training and layer.dropout_kind == "weights":
        used = F.dropout(weights, layer.dropout)
    mixed = used @ repeat_kv(value.transpose(1, 2), layer.num_heads)
    return zero_padding(layer.out_proj(join_heads(mixed)), mask), weights
