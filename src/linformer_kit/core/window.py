"""Exact attention nearby, compressed attention far away, in one softmax.

The sequence is cut into chunks of `window` positions. A query of chunk c attends to

    the exact keys of chunks c - 1, c and c + 1, at least `window` positions on each side,
    the exact keys of the first `global_tokens` positions, and
    the R compressed rows, with  log (m_cj / m_j) + b_hj  added to the scores of row j,

where m_j is the number of real positions that row j is made of, and m_cj of those that the query
does not see exactly: what the window shows is not seen twice. A row with m_cj = 0 is hidden, so a
window that covers the input is full attention. A row of `conv`, `mean` and `max` is made of its
segment, a row of another kind of all positions.

b is the weight of a row. `mean` and `max` have b = log m_j: a row counts as often as the positions
it stands for, which is exact if their keys are equal. A row of `pool` is made of the positions of
its segment that are not global, with weights p, and b is their entropy. A learned E has a learned b
for each head and row (for `conv`, each head), which starts at 0: a row of a new E is a random
mixture, and starts as one more position. `fixed` has b = 0.

The queries of the first `global_tokens` positions attend to all positions exactly, and to no rows.

`attend_span` is this for the queries of one span of positions, given the keys around it and what
has to be known of the whole sequence (`Whole`). In one process the span is the sequence.

Legend: B batch, N positions of the sequence, S of a span, L around it, C chunks, W window, R
compressed rows, g global positions, H heads, G key/value heads, D head size, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .chunks import Keys, attend_chunks, in_chunks, out_of_chunks
from .cpu.linear import apply_linear
from .dropout import drop_rows
from .plain_sdpa import hidden_bias, zero_padding
from .plan import plan_for
from .projection import Span
from .projection_kinds import check_passed_projection
from .window_dense import attend_all, attend_densely, is_covered, is_short
from .window_rows import (
    count_members,
    has_rows,
    members_of_rows,
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


class Around(NamedTuple):
    """The exact keys that the chunks of a span see."""

    key: Tensor  # (B, L, G, D)
    value: Tensor
    real: Tensor  # (B or 1, L)
    start: int  # the first of these positions


class Whole(NamedTuple):
    """What the queries of a span see of the whole sequence."""

    rows: CompressedKV | None
    counts: Tensor | None  # `count_members` of all spans, (2, B or 1, R or 1)
    global_key: Tensor | None = None  # (B, g, G, D)
    global_value: Tensor | None = None
    global_real: Tensor | None = None  # (B, g), None if there is no padding
    of_global: Tensor | None = None  # (B, g, H, D), the attention of their queries


def forward(
    layer: LinformerAttention,
    x: Tensor,
    mask: Tensor | None,
    context: Tensor | None,
    projection: Projection | None,
) -> Tensor:
    """The forward pass of a layer with a window or global tokens: x (B, N, M) -> (B, N, M)."""
    if context is not None:
        raise not_cross_attention(layer)
    drop = layer.dropout if layer.training and layer.dropout_kind == "weights" else 0.0
    mixed = (attend_densely if is_short(layer, x) else attend)(
        *heads_and_rows(layer, x, mask, projection, covered=is_covered(layer, x)),
        layer.row_bias,
        window=used_window(layer),
        global_tokens=layer.global_tokens,
        mask=mask,
        segment=segment_of(layer, projection),
        drop=drop,
    )
    return zero_padding(apply_linear(layer.out_proj, mixed.flatten(2)), mask)


def key_and_value(layer: LinformerAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Exact keys and values of x (B, N, M): (B, N, G, D) each."""
    key = apply_linear(layer.k_proj, x).unflatten(2, (layer.num_kv_heads, -1))
    return key, apply_linear(layer.v_proj, x).unflatten(2, (layer.num_kv_heads, -1))


def heads_and_rows(
    layer: LinformerAttention,
    x: Tensor,
    mask: Tensor | None,
    projection: Projection | None,
    *,
    covered: bool = False,
) -> tuple[Tensor, Tensor, Tensor, CompressedKV | None]:
    """Queries (B, N, H, D), keys and values (B, N, G, D), and the compressed rows."""
    x = zero_padding(x, mask)
    query = apply_linear(layer.q_proj, x).unflatten(2, (layer.num_heads, -1))
    key, value = heads = key_and_value(layer, x)
    rows = None
    if covered and has_rows(layer):  # every query sees every position exactly, and so no row
        check_passed_projection(projection, own=layer.projection, k=layer.k)
    elif has_rows(layer):
        members = members_of_rows(layer.kind, layer.global_tokens, x, mask)
        plan = plan_for(layer, x, x.shape[1])
        rows = layer._key_and_value(x, members, projection, plan, heads=heads)[0]
    if layer.dropout_kind == "rows":
        value = drop_rows(value, layer.dropout, layer.training)
        if rows is not None:
            rows = rows._replace(value=drop_rows(rows.value, layer.dropout, layer.training))
    return query, key, value, rows


def attend(
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
    """query (B, N, H, D), key and value (B, N, G, D), rows of CompressedKV -> (B, N, H, D).

    row_bias: a learned b, (H, R or 1), or None. segment: the positions of a segment, None if rows
    are not segments. mask (B, N): True = a real position.
    """
    length = query.shape[1]
    if not torch.compiler.is_compiling():  # a comparison would pin the length
        window = min(window, length)  # one chunk, without padding to a longer one
    seen = min(global_tokens, length) if global_tokens else 0
    span = Span.whole(query, mask)
    around = Around(key, value, span.real(query.device), 0)
    whole = Whole(rows, None)
    if rows is not None:
        counts = count_members(
            span,
            rows.key.shape[2],
            segment=segment,
            seen=seen,
            without_global=rows.bias is not None,
            device=query.device,
        )
        whole = Whole(rows, counts)
    if seen:
        of_global = attend_all(query[:, :seen], key, value, mask, drop=drop)
        shown = None if mask is None else mask[:, :seen]
        whole = Whole(*whole[:2], key[:, :seen], value[:, :seen], shown, of_global)
    return attend_span(
        query, span, around, whole, row_bias, window=window, segment=segment, drop=drop
    )


def attend_span(
    query: Tensor,
    span: Span,
    around: Around,
    whole: Whole,
    row_bias: Tensor | None,
    *,
    window: int,
    segment: int | None,
    drop: float = 0.0,
) -> Tensor:
    """The queries (B, S, H, D) of one span -> (B, S, H, D)."""
    count = query.shape[1]
    size = window or count
    before = span.start % size if window else 0  # of the first chunk, in the span before
    chunks = (before + count + size - 1) // size
    seen = 0 if whole.global_key is None else whole.global_key.shape[1]
    near = far = None
    if window:
        near = _near(around, span.start - before, chunks, window=window, seen=seen)
    if whole.rows is not None:
        assert whole.counts is not None
        bias = row_bias_of_chunks(
            span,
            around.real,
            around.start,
            whole.counts,
            score_bias(row_bias, whole.rows, query.shape[2]),
            rows=whole.rows.key.shape[2],
            chunks=chunks,
            window=window,
            seen=seen,
            segment=segment,
            dtype=query.dtype,
        )
        key, value = whole.rows.key.transpose(1, 2), whole.rows.value.transpose(1, 2)
        far = Keys(key[:, None], value[:, None], bias)
    if seen:
        far = _with_global_keys(far, whole, chunks)
    padded = F.pad(query, (0, 0, 0, 0, before, 0)) if before else query
    mixed = out_of_chunks(
        attend_chunks(in_chunks(padded, chunks, size), near, far, drop=drop), before + count
    )
    mixed = mixed[:, before:] if before else mixed
    if whole.of_global is None:
        return mixed
    first, last = min(span.start, seen), min(span.end, seen)  # its global positions
    # Also without any, so that all ranks take part in the backward pass of its collectives.
    return torch.cat((whole.of_global[:, first:last], mixed[:, last - first :]), dim=1)


def _near(around: Around, begin: int, chunks: int, *, window: int, seen: int) -> Keys:
    """The chunks from position `begin` on, with one before and one after them; hidden where there
    is none. Global positions are hidden too: they are among the far keys.
    """
    count = around.key.shape[1]
    position = torch.arange(around.start, around.start + count, device=around.key.device)
    visible = around.real & (position >= seen)
    ahead, lead = divmod(around.start - begin + window, window)  # chunks, and positions, before it
    own = (lead + count + window - 1) // window

    def cut(rows: Tensor) -> Tensor:
        rows = F.pad(rows, (0, 0) * (rows.dim() - 2) + (lead, 0)) if lead else rows
        rows = in_chunks(rows, own, window)
        return F.pad(rows, (0, 0) * (rows.dim() - 2) + (ahead, chunks + 2 - ahead - own))

    key, value, visible = cut(around.key), cut(around.value), cut(visible)
    seen_by = torch.cat([visible[:, i : i + chunks] for i in range(3)], dim=2)  # (B, C, 3W)
    return Keys(key, value, hidden_bias(seen_by, key.dtype)[:, :, None, None])


def _with_global_keys(far: Keys | None, whole: Whole, chunks: int) -> Keys:
    """The keys of global positions, visible to every chunk, before the rows."""
    key, value, real = whole.global_key, whole.global_value, whole.global_real
    assert key is not None
    assert value is not None
    if real is None:
        bias = key.new_zeros(1, 1, 1, key.shape[1])
    else:
        bias = hidden_bias(real[:, None, None], key.dtype)
    key, value = key[:, None], value[:, None]
    if far is None:
        return Keys(key, value, bias)
    assert far.bias is not None
    samples = torch.broadcast_shapes(bias.shape[:1], far.bias.shape[:1])[0]
    sizes = (samples, chunks, far.bias.shape[2], -1)
    return Keys(
        torch.cat((key, far.key), dim=2),
        torch.cat((value, far.value), dim=2),
        torch.cat((bias.expand(sizes), far.bias.expand(sizes)), dim=3),
    )
