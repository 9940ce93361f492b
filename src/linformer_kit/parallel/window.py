"""The encoder's window and global tokens on a sequence that is cut over ranks.

The mathematics is `core/window.py`. Chunks of `window` positions are counted from the beginning of
the whole sequence; a rank computes the chunks that its positions are in. It receives the inputs of
the chunks around them: the halo, `window` positions on each side if its part begins and ends with a
chunk, else fewer than twice as many.

Inputs of global positions are sent to all ranks with the compressed rows. Their queries attend to
all positions: each rank computes the attention to its own, and numerators and denominators are
added.

Legend: B batch, S positions of this rank, L with the halo, R compressed rows, H heads, G key/value
heads, D head size, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.dropout import drop_rows
from ..core.plain_sdpa import repeat_kv, zero_padding
from ..core.window import Around, Whole, attend_span, key_and_value
from ..core.window_rows import count_members, has_rows, segment_of, used_window
from .collectives import all_reduce_count, all_reduce_together
from .compress import compress

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.attention import LinformerAttention
    from ..core.projection import Projection, Span
    from .collectives import Range
    from .parts import Part


def attend_with_window(
    layer: LinformerAttention, x: Tensor, part: Part, projection: Projection | None
) -> Tensor:
    """The attention of a layer with a window or global tokens: x (B, S, M) -> (B, S, M)."""
    x = zero_padding(x, part.mask)
    around_x, real, start = _halo(x, part, window_of(layer, part))
    key, value = key_and_value(layer, around_x)
    inside = slice(part.start - start, part.end - start)
    rows, first = None, global_rows(layer, x, part)
    counts = None
    if has_rows(layer):
        own = key[:, inside], value[:, inside]
        rows, first = compress(layer, x, part, projection, heads=own, also=first)
        counts = _counts(part, segment_of(layer, projection), rows.key.shape[2], layer)
    elif first:
        first = all_reduce_together(first, part.group)
    drop = layer.dropout if layer.training else 0.0
    if layer.dropout_kind == "rows":
        value = drop_rows(value, drop, layer.training)
        if rows is not None:
            rows = rows._replace(value=drop_rows(rows.value, drop, layer.training))
        drop = 0.0
    whole = Whole(rows, counts)
    if first:
        of_global = GlobalSums.of(
            layer,
            first[0],
            key[:, inside],
            value[:, inside],
            part.mask,
            highest=part.highest,
            drop=drop,
        )
        summed = GlobalSums(*all_reduce_together(of_global, part.group))
        whole = with_globals(whole, layer, first, summed)
    around = Around(key, value, real, start)
    return attend_in_span(layer, x, part, around, whole, projection, drop=drop)


def with_globals(
    whole: Whole, layer: LinformerAttention, first: list[Tensor], sums: GlobalSums
) -> Whole:
    """`first`: what `global_rows` gave, added over the spans."""
    real = first[1] > 0.5 if len(first) > 1 else None
    return Whole(whole.rows, whole.counts, *key_and_value(layer, first[0]), real, sums.attended())


def attend_in_span(
    layer: LinformerAttention,
    x: Tensor,
    span: Span,
    around: Around,
    whole: Whole,
    projection: Projection | None,
    *,
    drop: float = 0.0,
) -> Tensor:
    """The attention of the queries of one span: x (B, S, M) -> (B, S, M)."""
    query = layer.q_proj(x).unflatten(2, (layer.num_heads, -1))
    mixed = attend_span(
        query,
        span,
        around,
        whole,
        layer.row_bias,
        window=window_of(layer, span),
        segment=segment_of(layer, projection),
        drop=drop,
    )
    return zero_padding(layer.out_proj(mixed.flatten(2)), span.mask)


def window_of(layer: LinformerAttention, span: Span) -> int:
    return min(used_window(layer), span.length)


def reach_of(window: int) -> Callable[[int, int], Range]:
    """The positions that the chunks of positions start ... end see."""
    return lambda start, end: ((start // window - 1) * window, (-(-end // window) + 1) * window)


def _halo(x: Tensor, part: Part, window: int) -> tuple[Tensor, Tensor, int]:
    """The inputs (B, L, M) that the chunks of this rank see, which are real (B or 1, L), and the
    first of these positions.
    """
    if not window:
        return x, part.real(x.device), part.start
    around, (start, _) = part.halo(x, reach_of(window))

    def real() -> Tensor:
        if part.mask is None:
            return torch.ones(1, around.shape[1], dtype=torch.bool, device=x.device)
        return part.halo(part.mask.byte(), reach_of(window))[0].bool()

    return around, part.once(("halo", window), real), start


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


def _counts(part: Part, segment: int | None, rows: int, layer: LinformerAttention) -> Tensor:
    """The sums of `count_members` over the ranks, once for all layers."""
    seen = layer.global_tokens

    def count() -> Tensor:
        own = count_members(
            part,
            rows,
            segment=segment,
            seen=seen,
            without_global=False,
            device=layer.q_proj.weight.device,
        )
        return all_reduce_count(own, part.group)

    return part.once(("counts", segment, rows, seen), count)


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
