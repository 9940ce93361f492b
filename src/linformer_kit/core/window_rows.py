"""Options of a layer with a window; which compressed rows it uses, and how much they weigh.

The formula is in `window.py`. Legend: B batch, N positions of the sequence, S of a span, L around
it, C chunks, R compressed rows, H heads, G key/value heads.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .plain_sdpa import hidden, repeat_kv
from .projection_kinds import SEGMENT_KINDS, learned_row_biases

if TYPE_CHECKING:
    from .attention import LinformerAttention
    from .compressed_kv import CompressedKV
    from .projection import Projection, Span


# The part of a trained layer that is used: "window" as with k = 0, "rows" as with window = 0.
Branch = Literal["both", "window", "rows"]


def check(window: int, global_tokens: int, *, kind: str, k: int | None) -> None:
    """Refuse combinations that have no meaning."""
    checks.whole("window", window)
    checks.whole("global_tokens", global_tokens)
    for name, value in (("window", window), ("global_tokens", global_tokens)):
        if value and kind == "full":
            raise ValueError(
                f"projection='full' attends to every position exactly, so {name} has no effect: "
                f"got {name}={value}. Leave it 0, or use another projection."
            )
    if k == 0 and not window and kind != "full":
        raise ValueError(
            f"k must be at least 1: got 0. Only with a window may it be 0: got window={window}."
        )


def switch_off(model: nn.Module, branch: Literal["rows", "window"]) -> None:
    """Let every layer with both a window and rows attend to the other of the two only.

    For measuring what each contributes; training and inference use both.
    """
    layers = [m for m in model.modules() if getattr(m, "window", 0) and hasattr(m, "branch")]
    if not any(layer.k for layer in layers):
        raise ValueError(
            f"only an encoder with a window and k > 0 can do without its {branch}: got "
            f"{len(layers)} layers with a window and none with both."
        )
    for layer in layers:
        if layer.k:
            layer.branch = "window" if branch == "rows" else "rows"  # type: ignore[assignment]


def not_cross_attention(layer: LinformerAttention) -> ValueError:
    return ValueError(
        "window and global_tokens are for self-attention, where a query has neighbours: got a "
        f"context, window={layer.window}, global_tokens={layer.global_tokens}. Build "
        "cross-attention with both 0."
    )


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


def has_rows(layer: LinformerAttention) -> bool:
    return bool(layer.k) and layer.branch != "window"


def segment_of(layer: LinformerAttention, projection: Projection | None) -> int | None:
    """The length of a segment, None for kinds whose rows mix all positions."""
    projection = layer.projection if projection is None else projection
    if not layer.k or projection is None or layer.kind not in SEGMENT_KINDS:
        return None
    assert projection.max_length is not None
    return math.ceil(projection.max_length / layer.k)


def members_of_rows(kind: str, global_tokens: int, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """The positions (B, N) that rows are made of. The weights of `pool` are highest where much
    attention goes, as it does to global positions, which are seen exactly and would hide the rest.
    """
    if kind != "pool" or not global_tokens:
        return mask
    after = torch.arange(x.shape[1], device=x.device) >= global_tokens
    return after[None].expand(x.shape[0], -1) if mask is None else mask & after


def count_members(
    span: Span,
    rows: int,
    *,
    segment: int | None,
    seen: int,
    without_global: bool,
    device: torch.device,
) -> Tensor:
    """How many real positions of a span each row is made of, and how many of them are not global:
    (2, B or 1, R or 1). `without_global`: no row is made of global positions.
    """
    real = span.real(device)
    outside = real & (span.positions(device) >= seen)
    both = torch.stack((outside if without_global else real, outside)).long()
    if segment is None:
        return both.sum(2, keepdim=True)
    before = F.pad(both.cumsum(2), (1, 0))  # (2, B or 1, S + 1)
    size = both.shape[2]
    begin = torch.arange(rows, device=device) * segment - span.start
    return before[..., (begin + segment).clamp(0, size)] - before[..., begin.clamp(0, size)]


def row_bias_of_chunks(
    span: Span,
    real: Tensor,
    start: int,
    counts: Tensor,
    bias: Tensor | None,
    *,
    rows: int,
    chunks: int,
    window: int,
    seen: int,
    segment: int | None,
    dtype: torch.dtype,
) -> Tensor:
    """log (m_cj / m_j) + b for every chunk of a span and every row, (B or 1, C, H or 1, R), very
    low where m_cj = 0. Without a b segments are counted: log m_cj.

    real (B or 1, L): of the positions around the span, which begin with `start`.
    """
    (total, outside), device, size = counts, real.device, real.shape[1]  # (B or 1, R or 1)
    position = torch.arange(start, start + size, device=device)
    before = F.pad((real & (position >= seen)).long().cumsum(1), (1, 0))  # (B or 1, L + 1)
    begin = span.start // window * window if window else span.start
    begins = begin + torch.arange(chunks, device=device) * (window or 1)
    first = (begins - window).clamp_min(0)  # the window of chunk c: first[c] <= i < last[c]
    last = (begins + 2 * window).clamp_max(span.length) if window else first
    if segment is None:
        inside = (before[:, last - start] - before[:, first - start])[..., None]  # (B or 1, C, 1)
    else:
        own = torch.arange(rows, device=device) * segment
        both_first = torch.maximum(own, first[:, None])  # (C, R)
        both_last = torch.minimum((own + segment).clamp_max(span.length), last[:, None])
        both_last = torch.maximum(both_last, both_first)
        inside = before[:, (both_last - start).clamp(0, size)]
        inside = inside - before[:, (both_first - start).clamp(0, size)]  # (B or 1, C, R)
    left = outside[:, None] - inside
    logs = left.clamp_min(1).to(torch.promote_types(dtype, torch.float32)).log()
    if segment is None or bias is not None:
        logs = logs - total[:, None].clamp_min(1).to(logs.dtype).log()
    logs = torch.where(left > 0, logs, hidden(dtype)).to(dtype).expand(-1, -1, rows)[:, :, None]
    return logs if bias is None else logs + bias


def score_bias(learned: Tensor | None, rows: CompressedKV, heads: int) -> Tensor | None:
    """The learned b, (H, R or 1), or that of the rows of this batch, (B, 1, H or 1, R)."""
    if rows.bias is None:
        return learned
    bias = rows.bias[..., None]  # (B, G or 1, R, 1)
    if bias.shape[1] > 1:
        bias = repeat_kv(bias, heads)
    return bias[:, None, ..., 0].to(rows.key.dtype)
