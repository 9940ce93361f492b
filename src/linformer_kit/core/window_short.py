"""Short inputs to a layer with a window: one call of the attention kernel.

An input of a few chunks has about as many keys in its windows as positions. Computing all scores
and hiding those outside the window then costs less than cutting the input into chunks: MiniLM's
layers, k 128 of 8,192 positions, window 64, take 0.80 to 0.93 of the time at n 160 to 320 in
inference. In training a layer of width 64 takes 0.40 of the time with 128 samples of 64 positions,
one of width 384 0.95 with 32 samples of 128, and 1.15 at five windows.

Legend: B batch, N positions, C chunks, R compressed rows, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from .plain_sdpa import hidden, hidden_bias
from .sdpa import sdpa
from .window_rows import row_bias_of_chunks, score_bias, used_window, weight_dropout

if TYPE_CHECKING:
    from torch import Tensor

    from .attention import LinformerAttention
    from .compressed_kv import CompressedKV

# Windows: the longest input that is short, in inference and with gradients.
_SHORT, _SHORT_IN_TRAINING = 5, 4


def is_inference(layer: LinformerAttention) -> bool:
    """Whether the layer may compute the same function in another way for some lengths."""
    return not (torch.is_grad_enabled() or layer.training or torch.compiler.is_compiling())


def is_short(layer: LinformerAttention, x: Tensor) -> bool:
    """Whether `attend_in_one_call` is the fastest way for x (B, N, M).

    With gradients only if nothing that is added to the scores has one: the kernel has none for it.
    """
    if is_inference(layer):
        return x.shape[1] <= _SHORT * used_window(layer)
    return (
        not torch.compiler.is_compiling()  # a graph is for any length
        and x.shape[1] <= _SHORT_IN_TRAINING * used_window(layer)
        and layer.row_bias is None
        and layer.kind != "pool"
        and not weight_dropout(layer)
    )


def attend_in_one_call(
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
) -> Tensor:
    """As `attend_with_window`, with all N + R scores of a query."""
    length, heads = query.shape[1:3]
    key, value = key.transpose(1, 2), value.transpose(1, 2)  # (B, G, N, D)
    own = None
    if rows is not None:
        own = score_bias(row_bias, rows, heads)
        key, value = torch.cat((key, rows.key), dim=2), torch.cat((value, rows.value), dim=2)
    # A fake tensor must not be found in the cache later.
    known = mask is None and own is None and type(query) is torch.Tensor
    bias_of = _cached_bias if known else _bias
    count = key.shape[2] - length
    sizes = length, count, window, min(global_tokens, length), segment
    bias = bias_of(*sizes, query.dtype, query.device, mask, own)
    return sdpa(query.transpose(1, 2), key, value, bias=bias).transpose(1, 2)


def _bias(
    length: int,
    rows: int,
    window: int,
    seen: int,
    segment: int | None,
    dtype: torch.dtype,
    device: torch.device,
    mask: Tensor | None = None,
    row_bias: Tensor | None = None,
) -> Tensor:
    """What is added to the scores, (B or 1, H or 1, N, N + R)."""
    position = torch.arange(length, device=device)
    chunk, is_global = position // window, position < seen
    near = ((chunk[:, None] - chunk).abs() <= 1) | is_global | is_global[:, None]
    visible = near[None] if mask is None else near & mask[:, None]
    bias = hidden_bias(visible, dtype)[:, None]  # (B or 1, 1, N, N)
    if not rows:
        return bias
    like = torch.empty(0, dtype=dtype, device=device)
    far = row_bias_of_chunks(
        length, rows, mask, row_bias, window=window, seen=seen, segment=segment, like=like
    )
    far = far.transpose(1, 2)[:, :, chunk]  # (B or 1, H or 1, N, R)
    far = far.masked_fill(is_global[:, None], hidden(dtype))
    sizes = torch.broadcast_shapes(bias.shape[:2], far.shape[:2])
    return torch.cat((bias.expand(*sizes, -1, -1), far.expand(*sizes, -1, -1)), dim=3)


@lru_cache(maxsize=8)
def _cached_bias(*sizes: Any) -> Tensor:
    """Without padding and learned weights of rows the layers of a model share one."""
    with torch.inference_mode(False):  # it may be used in training later
        return _bias(*sizes)
