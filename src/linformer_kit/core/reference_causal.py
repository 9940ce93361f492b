"""Causal attention, rotary positions, short convolution and moving sums as plain loops.

Legend: N tokens, K slots, H heads, G key/value heads, D head size, M model size, W width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .reference import ReferenceWeights, affine

if TYPE_CHECKING:
    from torch import Tensor


def short_conv(x: Tensor, taps: Tensor) -> Tensor:
    """x (N, M) plus its depthwise convolution with taps (M, W), centred."""
    middle = taps.shape[1] // 2
    rows = []
    for i in range(x.shape[0]):
        row = x[i]
        for j in range(taps.shape[1]):
            if 0 <= i + j - middle < x.shape[0]:
                row = row + taps[:, j] * x[i + j - middle]
        rows.append(row)
    return torch.stack(rows)


def moving_sums(u: Tensor, times: Tensor) -> Tensor:
    """Sums of u (N, M) that decay over times (M,): the first half of the channels before a row,
    the other half after it, itself included.
    """
    rows = []
    for i in range(u.shape[0]):
        row = []
        for c in range(u.shape[1]):
            before = c < u.shape[1] // 2
            seen = range(i + 1) if before else range(i, u.shape[0])
            weighted = [torch.exp(-abs(i - j) / times[c]) * u[j, c] for j in seen]
            row.append(torch.stack(weighted).sum())
        rows.append(torch.stack(row))
    return torch.stack(rows)


def rotate_one(rows: Tensor, position: int, rotary_dim: int) -> Tensor:
    """One head at one position, its first `rotary_dim` channels rotated (Su et al. 2021)."""
    half = rotary_dim // 2
    rotated = list(rows)
    for pair in range(half):
        angle = torch.tensor(position * 1e4 ** (-pair / half), dtype=torch.float64)
        cos, sin = angle.cos().to(rows.dtype), angle.sin().to(rows.dtype)
        first, second = rows[pair], rows[half + pair]
        rotated[pair] = first * cos - second * sin
        rotated[half + pair] = first * sin + second * cos
    return torch.stack(rotated)


def causal_attention(
    x: Tensor,
    weights: ReferenceWeights,
    *,
    num_heads: int,
    num_kv_heads: int,
    rotary_dim: int,
    slot_weight: Tensor | None,
    slot_bias: Tensor | None,
    window: int,
    bound: float,
) -> Tensor:
    """Causal attention of one sequence x (N, M), token by token.

    The token at t, of chunk c = t // window, attends in one softmax to the tokens from
    (c - 1) * window to t, and to a slot for each row j of slot_weight (K, M), made of the tokens i
    before (c - 1) * window:

        slot_j = sum_i exp(s_ij) (key_i, value_i) / sum_i exp(s_ij)
        s_ij = bound * tanh((slot_weight_j . x_i + slot_bias_j) / bound)

    where the rotated channels of a slot's key are zero. Without slot_weight all
    earlier tokens are attended to exactly, which is ordinary causal attention.
    """
    head_dim = weights.query.shape[0] // num_heads
    query = affine(x, weights.query, weights.query_bias).unflatten(1, (num_heads, head_dim))
    key = affine(x, weights.key, weights.key_bias).unflatten(1, (num_kv_heads, head_dim))
    value = affine(x, weights.value, weights.value_bias).unflatten(1, (num_kv_heads, head_dim))
    rows = []
    for t in range(x.shape[0]):
        first = 0 if slot_weight is None else max(0, (t // window - 1) * window)
        heads = []
        for h in range(num_heads):
            g = h * num_kv_heads // num_heads
            keys = [rotate_one(key[i, g], i, rotary_dim) for i in range(first, t + 1)]
            values = [value[i, g] for i in range(first, t + 1)]
            for j in range(0 if slot_weight is None or first == 0 else slot_weight.shape[0]):
                assert slot_weight is not None
                slot_key, slot_value, total = 0 * key[0, g], 0 * value[0, g], 0 * key[0, g, 0]
                for i in range(first):
                    score = x[i] @ slot_weight[j] + (0 if slot_bias is None else slot_bias[j])
                    share = (bound * (score / bound).tanh()).exp()
                    slot_key = slot_key + share * key[i, g]
                    slot_value = slot_value + share * value[i, g]
                    total = total + share
                known = torch.arange(head_dim) >= rotary_dim
                keys.append(torch.where(known, slot_key / total, torch.zeros_like(slot_key)))
                values.append(slot_value / total)
            rotated = rotate_one(query[t, h], t, rotary_dim)
            p = torch.stack([rotated @ k_i for k_i in keys]).div(head_dim**0.5).softmax(0)
            heads.append(
                torch.stack([p_i * v_i for p_i, v_i in zip(p, values, strict=True)]).sum(0)
            )
        rows.append(affine(torch.cat(heads), weights.output, weights.output_bias))
    return torch.stack(rows)
