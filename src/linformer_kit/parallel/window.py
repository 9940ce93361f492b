"""The encoder's window and global tokens on a sequence that is cut over ranks.

The mathematics is that of `core/window_attention.py`. Chunks of `window` positions are counted from
the beginning of the whole sequence; a rank computes the chunks that its positions are in. It
receives the inputs of the chunks around them: the halo, `window` positions on each side if its part
begins and ends with a chunk, else fewer than twice as many.

Inputs of global positions are sent to all ranks with the compressed rows. Their queries attend to
all positions: each rank computes the attention to its own, and numerators and denominators are
added.

Legend: B batch, S positions of this rank, C chunks, W window, R compressed rows, H heads, G
key/value heads, D head size, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.chunk_attention import Keys, attend_chunks
from ..core.chunks import in_chunks
from ..core.dropout import drop_rows
from ..core.plain_sdpa import hidden_bias, repeat_kv, zero_padding
from ..core.window_attention import _with_global_keys
from ..core.window_rows import has_rows, segment_of, used_window, weight_of_counts
from .collectives import (
    all_reduce_count,
    all_reduce_together,
)
from .compress import compress

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.attention import LinformerAttention
    from ..core.compressed_kv import CompressedKV
    from ..core.projection import Projection, Span
    from .collectives import Range
    from .parts import Part


class Around(NamedTuple):
    """The inputs that the chunks of a span see."""

    x: Tensor  # (B, L, M), padded rows zero
    real: Tensor  # (B or 1, L)
    reach: Range  # which positions they are


class Seen(NamedTuple):
    """What all spans see of the whole sequence."""

    rows: CompressedKV | None
    total: Tensor | None  # (B or 1, R or 1): the real positions that each row is made of
    outside: Tensor | None  # those of them that are not global
    global_x: Tensor | None  # (B, L, M): the inputs of the global positions
    global_real: Tensor | None  # (B, L), None if there is no padding
    of_global: Tensor | None  # (B, L, H, D): the attention of their queries


def attend_with_window(
    layer: LinformerAttention, x: Tensor, part: Part, projection: Projection | None
) -> Tensor:
    """The attention of a layer with a window or global tokens: x (B, S, M) -> (B, S, M)."""
    x = zero_padding(x, part.mask)
    around = _halo(x, part, window_of(layer, part))
    key, value = heads_of(layer, around.x)
    inside = slice(part.start - around.reach[0], part.end - around.reach[0])
    own = (key[:, inside], value[:, inside])
    rows, first = None, global_rows(layer, x, part)
    total = outside = of_global = None
    if has_rows(layer):
        rows, first = compress(layer, x, part, projection, heads=own, also=first)
        segment = segment_of(layer, projection)
        total, outside = _counts(part, segment, rows.key.shape[2], layer.global_tokens, x.device)
    elif first:
        first = all_reduce_together(first, part.group)
    drop = layer.dropout if layer.training else 0.0
    if layer.dropout_kind == "rows":
        value = drop_rows(value, drop, layer.training)
        if rows is not None:
            rows = rows._replace(value=drop_rows(rows.value, drop, layer.training))
        drop = 0.0
    global_x = global_real = None
    if first:
        global_x = first[0]
        global_real = None if part.mask is None else first[1] > 0.5
        partial = GlobalSums.of(
            layer,
            global_x,
            key[:, inside],
            value[:, inside],
            part.mask,
            highest=part.highest,
            drop=drop,
        )
        of_global = GlobalSums(*all_reduce_together(partial, part.group)).attended()
    seen = Seen(rows, total, outside, global_x, global_real, of_global)
    return attend_span(layer, x, part, around, (key, value), seen, projection, drop=drop)


def window_of(layer: LinformerAttention, span: Span) -> int:
    return min(used_window(layer), span.length)


def heads_of(layer: LinformerAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values (B, L, G, D)."""
    key, value = (
        linear(x).unflatten(2, (layer.num_kv_heads, -1)) for linear in (layer.k_proj, layer.v_proj)
    )
    return key, value


def attend_span(
    layer: LinformerAttention,
    x: Tensor,
    span: Span,
    around: Around,
    heads: tuple[Tensor, Tensor],
    whole: Seen,
    projection: Projection | None,
    *,
    drop: float = 0.0,
) -> Tensor:
    """The attention of the queries of one span: x (B, S, M) -> (B, S, M).

    heads: the keys and values of `around`.
    """
    window, seen = window_of(layer, span), min(layer.global_tokens, span.length)
    query = layer.q_proj(x).unflatten(2, (layer.num_heads, -1))
    size = window or x.shape[1]
    begin = span.start // size * size if window else span.start  # of the first chunk
    before = span.start - begin
    chunks = -(-(before + x.shape[1]) // size)
    near = far = None
    if window:
        near = _near(*heads, around, begin=begin, chunks=chunks, window=window, seen=seen)
    rows = whole.rows
    if rows is not None:
        bias = _row_bias(
            layer, whole, span, around, projection, begin, chunks, window=window, seen=seen
        )
        far = Keys(rows.key.transpose(1, 2)[:, None], rows.value.transpose(1, 2)[:, None], bias)
    if whole.global_x is not None:
        far = _with_global_keys(far, *heads_of(layer, whole.global_x), whole.global_real, chunks)
    padded = F.pad(query, (0, 0, 0, 0, before, 0)) if before else query
    mixed = attend_chunks(in_chunks(padded, chunks, size), near, far, drop=drop)
    mixed = mixed.flatten(1, 2)[:, before : before + x.shape[1]]
    if whole.of_global is not None:
        first, last = min(span.start, seen), min(span.end, seen)  # its global positions
        # Also without any, so that all ranks take part in the backward pass of its collectives.
        mixed = torch.cat((whole.of_global[:, first:last], mixed[:, last - first :]), dim=1)
    return zero_padding(layer.out_proj(mixed.flatten(2)), span.mask)


def reach_of(window: int) -> Callable[[int, int], Range]:
    """The positions that the chunks of positions start ... end see."""
    return lambda start, end: ((start // window - 1) * window, (-(-end // window) + 1) * window)


def _halo(x: Tensor, part: Part, window: int) -> Around:
    if not window:
        return Around(x, part.real(x.device), (part.start, part.end))
    around, reach = part.halo(x, reach_of(window))

    def real() -> Tensor:
        if part.mask is None:
            return torch.ones(1, around.shape[1], dtype=torch.bool, device=x.device)
        return part.halo(part.mask.byte(), reach_of(window))[0].bool()

    return Around(around, part.once(("halo", window), real), reach)


def global_rows(layer: LinformerAttention, x: Tensor, span: Span) -> list[Tensor]:
    """The inputs of the global positions of a span, zeros for others (B, L, M), and whether they
    are real.
    """
    seen = min(layer.global_tokens, span.length)
    if not seen:
        return []
    first, last = min(span.start, seen), min(span.end, seen)
    rows, sizes = x[:, : last - first], (first, seen - last)
    found = [F.pad(rows, (0, 0, *sizes))]
    if span.mask is not None:
        found.append(F.pad(span.mask[:, : last - first].to(x.dtype), sizes))
    return found


def _near(
    key: Tensor,
    value: Tensor,
    around: Around,
    *,
    begin: int,
    chunks: int,
    window: int,
    seen: int,
) -> Keys:
    """The chunks of a span with one before and one after them; hidden where there is none."""
    real, reach = around.real, around.reach
    left = reach[0] - (begin - window)
    right = begin + (chunks + 1) * window - reach[1]
    position = torch.arange(*reach, device=key.device)
    visible = real & (position >= seen)  # global positions are among the far keys
    key, value = (
        F.pad(rows, (0, 0, 0, 0, left, right)).unflatten(1, (chunks + 2, window))
        for rows in (key, value)
    )
    visible = F.pad(visible, (left, right)).unflatten(1, (chunks + 2, window))
    seen_by = torch.cat([visible[:, i : i + chunks] for i in range(3)], dim=2)  # (B, C, 3W)
    return Keys(key, value, hidden_bias(seen_by, key.dtype)[:, :, None, None])


def _row_bias(
    layer: LinformerAttention,
    whole: Seen,
    span: Span,
    around: Around,
    projection: Projection | None,
    begin: int,
    chunks: int,
    *,
    window: int,
    seen: int,
) -> Tensor:
    """log (m_cj / m_j) + b for every chunk of a span and every row: (B or 1, C, H or 1, R)."""
    rows, total, outside = whole.rows, whole.total, whole.outside
    assert rows is not None
    assert total is not None
    assert outside is not None
    segment, real, reach = segment_of(layer, projection), around.real, around.reach
    count, device = rows.key.shape[2], rows.key.device
    position = torch.arange(*reach, device=device)
    before = F.pad((real & (position >= seen)).long().cumsum(1), (1, 0))  # (B or 1, L + 1)
    start = begin + torch.arange(chunks, device=device) * (window or 1)
    first = (start - window).clamp_min(0)
    last = (start + 2 * window).clamp_max(span.length) if window else first
    if segment is None:
        inside = (before[:, last - reach[0]] - before[:, first - reach[0]])[..., None]
    else:
        own = torch.arange(count, device=device) * segment
        both_first = torch.maximum(own, first[:, None])  # (C, R)
        end = (own + segment).clamp_max(span.length)
        both_last = torch.maximum(torch.minimum(end, last[:, None]), both_first)
        size = reach[1] - reach[0]
        at = [(each - reach[0]).clamp(0, size) for each in (both_last, both_first)]
        inside = before[:, at[0]] - before[:, at[1]]  # (B or 1, C, R)
    left = outside[:, None] - inside
    row_bias = layer.row_bias
    relative = segment is None or row_bias is not None
    bias = weight_of_counts(left, total[:, None], count, relative=relative, like=rows.key)
    return bias[:, :, None] if row_bias is None else bias[:, :, None] + row_bias


def counts_of_span(
    span: Span, segment: int | None, rows: int, seen: int, device: torch.device
) -> Tensor:
    """The real positions of a span that each row is made of, and those of them that are not
    global: (2, B or 1, R or 1).
    """
    real = span.real(device)
    position = span.positions(device)
    both = torch.stack((real, real & (position >= seen)))  # (2, B or 1, S)
    if segment is None:
        return both.sum(2, keepdim=True)
    counts = both.new_zeros(*both.shape[:2], rows, dtype=torch.int64)
    return counts.scatter_add_(2, (position // segment).expand_as(both), both.long())


def _counts(
    part: Part, segment: int | None, rows: int, seen: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The sums of `counts_of_span` over the ranks, once for all layers."""
    total = part.once(
        ("counts", segment, rows, seen),
        lambda: all_reduce_count(counts_of_span(part, segment, rows, seen, device), part.group),
    )
    return total[0], total[1]


class GlobalSums(NamedTuple):
    """Exact attention of the global queries to the positions of a span, to be added over spans."""

    mixed: Tensor  # (B, H, L, D)
    weight: Tensor  # (B, H, L, 1)

    @classmethod
    def of(
        cls,
        layer: LinformerAttention,
        global_x: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        *,
        highest: Callable[[Tensor], Tensor] | None,
        drop: float = 0.0,
    ) -> GlobalSums:
        """key and value (B, S, G, D). `highest` as in `Span`."""
        heads = layer.num_heads
        query = layer.q_proj(global_x).unflatten(2, (heads, -1)).transpose(1, 2)  # (B, H, L, D)
        key, value = (repeat_kv(rows.transpose(1, 2), heads) for rows in (key, value))
        scores = query @ key.mT * query.shape[-1] ** -0.5  # (B, H, L, S)
        hide = None if mask is None else ~mask[:, None, None]
        if hide is not None:
            scores = scores.masked_fill(hide, torch.finfo(scores.dtype).min)
        own = scores.amax(-1, keepdim=True)
        weights = (scores - (own.detach() if highest is None else highest(own))).exp()
        if hide is not None:
            weights = weights.masked_fill(hide, 0.0)
        total = weights.sum(-1, keepdim=True)
        if drop:
            weights = F.dropout(weights, drop)
        return cls(weights @ value, total)

    def attended(self) -> Tensor:
        """(B, L, H, D), of the sums over all spans."""
        return (self.mixed / torch.where(self.weight > 0, self.weight, 1.0)).transpose(1, 2)
