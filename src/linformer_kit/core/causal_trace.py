"""The attention weights of `CausalLinformerAttention`, which its forward pass never materialises.

Legend: as in `causal.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .chunks import in_chunks, shift_chunks
from .dropout import drop_rows
from .plain_sdpa import attention_weights, join_heads, repeat_kv

if TYPE_CHECKING:
    from .causal import CausalLinformerAttention
    from .unpadding import Unpadding


def weights(layer: CausalLinformerAttention, x: Tensor) -> Tensor:
    """The attention weights (B, H, N, K + 2W) of a whole sequence x (B, N, M).

    Of each token: to the slots, to the previous chunk, and to its own chunk.
    """
    return _weights(layer, x)[0]


def trace(
    layer: CausalLinformerAttention, x: Tensor, *, unpadding: Unpadding | None = None
) -> tuple[Tensor, Tensor]:
    """As forward, and the weights (B, H, N, K + 2W) that the output is computed from.

    If padding was removed from x, `unpadding` puts it back into the weights.
    """
    weights, value, slot_value = _weights(layer, x)
    shown = used = weights
    if unpadding is not None:
        shown = unpadding.pad_weights(weights)
        used = unpadding.unpad_weights(shown)
    values = _dropped_values(layer, value, slot_value).transpose(2, 3)  # (B, C, G, K + 2W, D)
    rows = in_chunks(used.transpose(1, 2), values.shape[1], layer.window)  # (B, C, W, H, L)
    mixed = rows.transpose(2, 3) @ repeat_kv(values, layer.num_heads)  # (B, C, H, W, D)
    mixed = mixed.transpose(1, 2).flatten(2, 3)[:, :, : x.shape[1]]  # (B, H, N, D)
    return layer.out_proj(join_heads(mixed)), shown


def _weights(layer: CausalLinformerAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weights (B, H, N, K + 2W), values (B, N, G, D) and slots' values (B, C, K, G, D)."""
    length = x.shape[1]
    window, chunks = layer.window, -(-length // layer.window)
    position = torch.arange(length, device=x.device)[None]
    *heads, value = layer.rotated_heads(x, position)
    query, key, plain_key, value_chunks, weight = (
        in_chunks(rows, chunks, window) for rows in (*heads, value, layer._slot_weights(x))
    )
    sums = layer._chunk_sums(weight, plain_key, value_chunks).cumsum(1)  # (B, C, K, F)
    slot_key, slot_value = layer._slots(shift_chunks(sums, 2), dtype=x.dtype)
    number = torch.arange(chunks, device=x.device)
    since = torch.tensor([2] * layer.k + [1] * window + [0] * window, device=x.device)
    row = torch.arange(window, device=x.device)
    own = torch.cat((row.new_full((layer.k + window,), -1), row)) <= row[:, None]  # (W, K + 2W)
    mask = (own & (number[:, None, None] >= since))[:, None]  # (C, 1, W, K + 2W)
    keys = torch.cat((slot_key, shift_chunks(key, 1), key), dim=2)  # (B, C, K + 2W, G, D)
    weights = attention_weights(query.transpose(2, 3), keys.transpose(2, 3), mask)
    weights = weights.transpose(1, 2).flatten(2, 3)[:, :, :length]
    return weights, value, slot_value


def _dropped_values(layer: CausalLinformerAttention, value: Tensor, slot_value: Tensor) -> Tensor:
    """The values of each chunk after dropout: (B, C, K + 2W, G, D).

    Dropout is drawn as in `_segment`: for the first two chunks, then for chunks 1 to the last, and
    for the slots.
    """
    chunks, window = slot_value.shape[1], layer.window
    first = drop_rows(value[:, : 2 * window], layer.dropout, layer.training)
    first = in_chunks(first, min(chunks, 2), window)
    hidden = torch.zeros_like(slot_value[:, :2])
    first = torch.cat((hidden, shift_chunks(first, 1), first), dim=2)
    if chunks <= 2:
        return first
    value = drop_rows(in_chunks(value, chunks, window)[:, 1:], layer.dropout, layer.training)
    slots = drop_rows(slot_value[:, 2:], layer.dropout, layer.training)
    others = torch.cat((slots, value[:, :-1], value[:, 1:]), dim=2)
    return torch.cat((first, others), dim=1)
