"""A window by all scores, with those outside of it hidden: for short inputs, and for the weights.

Legend: B batch, N positions, R compressed rows, H heads, G key/value heads, D head size, M model
size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import checks
from .plain_sdpa import attention_weights, hidden, hidden_bias, join_heads, repeat_kv, zero_padding
from .projection import Span
from .sdpa import sdpa
from .window_rows import (
    count_members,
    not_cross_attention,
    row_bias_of_chunks,
    score_bias,
    segment_of,
    used_window,
)

if TYPE_CHECKING:
    from .attention import LinformerAttention
    from .compressed_kv import CompressedKV
    from .projection import Projection

# Windows: the longest input whose scores are computed all and hidden outside the window. An input
# of a few chunks has about as many keys in its windows as positions: MiniLM's layers, k 128 of
# 8,192 positions, window 64, take 0.80 to 0.93 of the time of chunks at n 160 to 320. In training a
# layer of width 64 takes 0.40 of it with 128 samples of 64 positions, one of width 384 0.95 with 32
# samples of 128, and 1.15 at five windows.
_SHORT, _SHORT_IN_TRAINING = 5, 4


def is_inference(layer: LinformerAttention) -> bool:
    """Whether the layer may compute the same function in another way for some lengths."""
    return not (torch.is_grad_enabled() or layer.training or torch.compiler.is_compiling())


def is_short(layer: LinformerAttention, x: Tensor) -> bool:
    """Whether one call of the attention kernel is the fastest way for x (B, N, M).

    With gradients only if nothing that is added to the scores has one: the kernel has none for it.
    """
    if is_inference(layer):
        return x.shape[1] <= _SHORT * used_window(layer)
    return (
        not torch.compiler.is_compiling()  # a graph is for any length
        and x.shape[1] <= _SHORT_IN_TRAINING * used_window(layer)
        and layer.row_bias is None
        and layer.kind != "pool"
        and not (layer.training and layer.dropout and layer.dropout_kind == "weights")
    )


def is_covered(layer: LinformerAttention, x: Tensor) -> bool:
    """Whether every query sees every position exactly, so that no row is seen, in inference."""
    length = x.shape[1]
    return (
        is_inference(layer)
        and length <= 2 * used_window(layer)
        and (layer.max_length is None or length <= layer.max_length)
    )


def attend_all(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, drop: float = 0.0
) -> Tensor:
    """query (B, N, H, D) to all real positions of key and value (B, S, G, D): (B, N, H, D)."""
    heads = (rows.transpose(1, 2) for rows in (query, key, value))
    shown = None if mask is None else mask[:, None, None]
    return sdpa(*heads, mask=shown, drop=drop).transpose(1, 2)


def attend_densely(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: CompressedKV | None,
    row_bias: Tensor | None,
    *,
    window: int,
    global_tokens: int,
    mask: Tensor | None,
    segment: int | None,
    drop: float = 0.0,
) -> Tensor:
    """As `window.attend`."""
    if rows is None and query.shape[1] <= 2 * window:
        return attend_all(query, key, value, mask, drop=drop)
    seen = min(global_tokens, query.shape[1])
    bias = _dense_bias(query, rows, row_bias, mask, window=window, seen=seen, segment=segment)
    key, value = key.transpose(1, 2), value.transpose(1, 2)  # (B, G, N, D)
    if rows is not None:
        key, value = torch.cat((key, rows.key), dim=2), torch.cat((value, rows.value), dim=2)
    return sdpa(query.transpose(1, 2), key, value, bias=bias, drop=drop).transpose(1, 2)


def _dense_bias(
    query: Tensor,
    rows: CompressedKV | None,
    row_bias: Tensor | None,
    mask: Tensor | None,
    **sizes: Any,
) -> Tensor:
    """What is added to all scores, (B or 1, H or 1, N, N + R)."""
    count = 0 if rows is None else rows.key.shape[2]
    bias = None if rows is None else score_bias(row_bias, rows, query.shape[2])
    # A fake tensor must not be found in the cache later.
    known = mask is None and bias is None and type(query) is torch.Tensor
    make = _cached_dense_bias if known else _make_dense_bias
    return make(query.shape[1], count, query.dtype, query.device, mask, bias, **sizes)


def _make_dense_bias(
    length: int,
    rows: int,
    dtype: torch.dtype,
    device: torch.device,
    mask: Tensor | None,
    bias: Tensor | None,
    *,
    window: int,
    seen: int,
    segment: int | None,
) -> Tensor:
    position = torch.arange(length, device=device)
    is_global = position < seen
    visible = is_global | is_global[:, None]
    chunk = position // window if window else position * 0
    if window:
        visible = visible | ((chunk[:, None] - chunk).abs() <= 1)
    near = hidden_bias(visible[None] if mask is None else visible & mask[:, None], dtype)[:, None]
    if not rows:
        return near  # (B or 1, 1, N, N)
    span = Span(0, length, length, mask)
    of_batch = bias is not None and bias.dim() == 4
    counts = count_members(
        span, rows, segment=segment, seen=seen, without_global=of_batch, device=device
    )
    chunks = -(-length // window) if window else 1
    far = row_bias_of_chunks(
        span,
        span.real(device),
        0,
        counts,
        bias,
        rows=rows,
        chunks=chunks,
        window=window,
        seen=seen,
        segment=segment,
        dtype=dtype,
    )
    far = far.transpose(1, 2)[:, :, chunk]  # (B or 1, H or 1, N, R)
    far = far.masked_fill(is_global[:, None], hidden(dtype))
    sizes = torch.broadcast_shapes(near.shape[:2], far.shape[:2])
    return torch.cat((near.expand(*sizes, -1, -1), far.expand(*sizes, -1, -1)), dim=3)


@lru_cache(maxsize=8)
def _cached_dense_bias(*given: Any, **sizes: Any) -> Tensor:
    """Without padding and learned weights of rows the layers of a model share one."""
    with torch.inference_mode(False):  # it may be used in training later
        return _make_dense_bias(*given, **sizes)


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
    from .window import heads_and_rows

    checks.sequence("x", x, layer.dim, mask=mask)
    if context is not None:
        raise not_cross_attention(layer)
    query, key, value, rows = heads_and_rows(layer, x, mask, projection)
    length = x.shape[1]
    bias = _dense_bias(
        query,
        rows,
        layer.row_bias,
        mask,
        window=used_window(layer),
        seen=min(layer.global_tokens, length),
        segment=segment_of(layer, projection),
    )
    if rows is not None:
        bias = torch.cat((bias[..., length:], bias[..., :length]), dim=3)
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
