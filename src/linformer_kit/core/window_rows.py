"""The compressed rows beside a window: which a layer uses, and how much they weigh.

The formula is in `window_attention.py`. Legend: B batch, N positions, C chunks, R compressed rows,
H heads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cpu.predicate import is_unmodified_linear
from .plain_sdpa import hidden, repeat_kv
from .plan import plan_for
from .projection_kinds import NOT_A_MATRIX, SEGMENT_KINDS, learned_row_biases

if TYPE_CHECKING:
    from .attention import LinformerAttention
    from .compressed_kv import CompressedKV
    from .projection import Projection


def build_row_bias(kind: str, k: int | None, num_heads: int) -> nn.Parameter | None:
    """b (H, k), or (H, 1) for `conv`, whose number of rows depends on the input."""
    count = learned_row_biases(kind, k)
    return nn.Parameter(torch.zeros(num_heads, count)) if count else None


def reset_row_bias(row_bias: nn.Parameter | None) -> None:
    if row_bias is not None:
        nn.init.zeros_(row_bias)


def used_window(layer: LinformerAttention) -> int:
    """The window of this call, 0 if that branch is switched off."""
    return 0 if layer.branch == "rows" else layer.window


def weight_dropout(layer: LinformerAttention) -> float:
    return layer.dropout if layer.training and layer.dropout_kind == "weights" else 0.0


def has_rows(layer: LinformerAttention) -> bool:
    return bool(layer.k) and layer.branch != "window"


def rows_from_input(layer: LinformerAttention, x: Tensor) -> bool:
    """Whether the rows are compressed from the input, not from keys and values."""
    unmodified = is_unmodified_linear(layer.k_proj) and is_unmodified_linear(layer.v_proj)
    by_input = plan_for(layer, x, x.shape[1]).shorten == "input" and unmodified
    return layer.kind in NOT_A_MATRIX or by_input


def rows_mask(kind: str, global_tokens: int, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """The positions (B, N) that rows are made of. The weights of `pool` are highest where much
    attention goes, as it does to global positions, which are seen exactly and would hide the rest.
    """
    if kind != "pool" or not global_tokens:
        return mask
    after = torch.arange(x.shape[1], device=x.device) >= global_tokens
    return after[None].expand(x.shape[0], -1) if mask is None else mask & after


def score_bias(learned: Tensor | None, rows: CompressedKV, heads: int) -> Tensor | None:
    """The learned b, (H, R or 1), or that of the rows of this batch, (B, 1, H or 1, R)."""
    if rows.bias is None:
        return learned
    bias = rows.bias[..., None]  # (B, G or 1, R, 1)
    if bias.shape[1] > 1:
        bias = repeat_kv(bias, heads)
    return bias[:, None, ..., 0].to(rows.key.dtype)


def segment_of(layer: LinformerAttention, projection: Projection | None) -> int | None:
    """The length of a segment, None for kinds whose rows mix all positions."""
    projection = layer.projection if projection is None else projection
    if not layer.k or projection is None or layer.kind not in SEGMENT_KINDS:
        return None
    assert projection.max_length is not None
    return math.ceil(projection.max_length / layer.k)


def row_bias_of_chunks(
    length: int,
    rows: int,
    mask: Tensor | None,
    row_bias: Tensor | None,
    *,
    window: int,
    seen: int,
    segment: int | None,
    like: Tensor,
) -> Tensor:
    """log (m_cj / m_j) + b for every chunk and row, (B or 1, C, H or 1, R), very low where
    m_cj = 0. row_bias: a learned b (H, R or 1); or one of this batch (B, 1, H or 1, R), of rows
    that no global position is part of; or None: segments are counted, log m_cj.
    """
    bias = weight_of_rows(
        length,
        rows,
        mask,
        window=window,
        seen=seen,
        segment=segment,
        relative=row_bias is not None,
        without_global=row_bias is not None and row_bias.dim() == 4,
        like=like,
    )[:, :, None]
    return bias if row_bias is None else bias + row_bias


def weight_of_rows(
    length: int,
    rows: int,
    mask: Tensor | None,
    *,
    window: int,
    seen: int,
    segment: int | None,
    relative: bool,
    without_global: bool = False,
    like: Tensor,
) -> Tensor:
    """log (m_cj / m_j) for every chunk and row, (B or 1, C, R), very low where m_cj = 0.

    `seen`: the number of global positions. `relative=False` gives log m_cj for segments.
    `without_global`: no row is made of global positions. `like`: a tensor of the device and dtype.
    """
    device = like.device
    if mask is None:
        mask = torch.ones(1, length, dtype=torch.bool, device=device)
    real = F.pad(mask.long().cumsum(1), (1, 0))  # (B or 1, N + 1): the positions before each
    outside = mask & (torch.arange(length, device=device) >= seen)
    before = F.pad(outside.long().cumsum(1), (1, 0))
    size = window or length
    start = torch.arange(0, length, size, device=device)  # of each chunk
    first = (start - window).clamp_min(0)  # the window of chunk c: first[c] <= i < last[c]
    last = (start + 2 * window).clamp_max(length) if window else first
    if segment is None:
        inside = before[:, last] - before[:, first]  # (B or 1, C)
        left = (before[:, -1:] - inside)[..., None]
        total = real[:, -1, None, None]
    else:
        begin = torch.arange(rows, device=device) * segment
        end = (begin + segment).clamp_max(length)
        both_first = torch.maximum(begin, first[:, None])  # (C, R)
        both_last = torch.maximum(torch.minimum(end, last[:, None]), both_first)
        inside = before[:, both_last] - before[:, both_first]  # (B or 1, C, R)
        left = (before[:, end] - before[:, begin])[:, None] - inside
        members = before if without_global else real
        total = (members[:, end] - members[:, begin])[:, None]
    return weight_of_counts(left, total, rows, relative=segment is None or relative, like=like)


def weight_of_counts(
    left: Tensor, total: Tensor, rows: int, *, relative: bool, like: Tensor
) -> Tensor:
    """log (m_cj / m_j), or log m_cj, of m_cj `left` and m_j `total`: (B or 1, C, R)."""
    logs = left.clamp_min(1).to(torch.promote_types(like.dtype, torch.float32)).log()
    if relative:
        logs = logs - total.clamp_min(1).to(logs.dtype).log()
    return torch.where(left > 0, logs, hidden(like.dtype)).to(like.dtype).expand(-1, -1, rows)
