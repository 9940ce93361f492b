"""The attention weights of `LinformerAttention`, which its forward pass never materialises.

Legend: B batch, N queries, R compressed rows, H heads, D head size, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import checks, window_dense
from .compressed_kv import ContextKV, FoldedKV
from .plain_sdpa import attention_weights, join_heads, repeat_kv, split_heads, zero_padding
from .plan import plan_for

if TYPE_CHECKING:
    from .attention import LinformerAttention
    from .projection import Projection
    from .unpadding import Unpadding


class AttentionTrace(NamedTuple):
    """The output of an attention layer and the weights that it was computed from."""

    output: Tensor  # (B, N, M)
    weights: Tensor  # (B, H, N, R); with a window (B, H, N, R + N): to the rows, then to positions


def trace(
    layer: LinformerAttention,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
    projection: Projection | None = None,
) -> AttentionTrace:
    """As forward, with the attention weights (B, H, N, R) that the output is computed from.

    With a window or global tokens they are (B, H, N, R + N): to the rows, then to the positions.
    """
    if layer.has_exact_keys:
        checks.context(x, context, context_mask, layer.context_dim)
        return AttentionTrace(*window_dense.trace(layer, x, mask, context, projection))
    x, context, context_mask = _without_padding(layer, x, mask, context, context_mask)
    kv, _ = layer._compress(context, context_mask, projection, queries=x.shape[1], may_fold=False)
    y, weights = attend_with_weights(layer, x, kv, mask=mask)
    return AttentionTrace(zero_padding(y, mask), weights)


def weights(
    layer: LinformerAttention,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
    projection: Projection | None = None,
) -> Tensor:
    """The attention weights (B, H, N, R). `trace` returns them with the output."""
    if layer.has_exact_keys:
        return trace(
            layer,
            x,
            mask=mask,
            context=context,
            context_mask=context_mask,
            projection=projection,
        ).weights
    x, context, context_mask = _without_padding(layer, x, mask, context, context_mask)
    plan = plan_for(layer, context, x.shape[1])
    kv, _ = layer._key_and_value(context, context_mask, projection, plan)
    weights = attention_weights(split_heads(layer.q_proj(x), layer.num_heads), kv.key, kv.mask)
    return weights if mask is None else weights.masked_fill(~mask[:, None, :, None], 0.0)


def attend_with_weights(
    layer: LinformerAttention,
    x: Tensor,
    kv: ContextKV,
    *,
    mask: Tensor | None = None,
    unpadding: Unpadding | None = None,
) -> AttentionTrace:
    """As `attend`, with the attention weights (B, H, N, R) that the output is computed from.

    The weights have a gradient. They are zero at padded queries, marked by `mask` (B, N); if
    padding was removed from x, `unpadding` puts it back. `kv` must not be folded.
    """
    kv = kv.expand_batch(x.shape[0])
    if isinstance(kv, FoldedKV):
        raise ValueError(
            "folded keys and values have no keys to compute weights from. Compress with fold=False."
        )
    query = split_heads(layer.q_proj(x), layer.num_heads)  # (B, H, N, D)
    weights = attention_weights(query, kv.key, kv.mask)
    shown = used = weights
    if unpadding is not None:
        shown = unpadding.pad_weights(weights)
        used = unpadding.unpad_weights(shown)
    elif mask is not None:
        real = mask[:, None, :, None]
        shown = weights.masked_fill(~real, 0.0)
        used = torch.where(real, shown, weights)  # rows at padding as `attend` computes them
    if layer.training and layer.dropout > 0.0 and layer.dropout_kind == "weights":
        used = F.dropout(used, layer.dropout)
    mixed = used @ repeat_kv(kv.value, layer.num_heads)  # (B, H, N, D)
    return AttentionTrace(layer.out_proj(join_heads(mixed)), shown)


def _without_padding(
    layer: LinformerAttention,
    x: Tensor,
    mask: Tensor | None,
    context: Tensor | None,
    context_mask: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """x and its context (x itself by default), checked, with padded positions set to zero."""
    checks.sequence("x", x, layer.dim, mask=mask)
    checks.context(x, context, context_mask, layer.context_dim)
    x = zero_padding(x, mask)
    if context is None:
        return x, x, mask
    return x, zero_padding(context, context_mask), context_mask
