"""Compressed keys and values of a sequence that is cut over ranks: E X = sum over ranks of E_r X_r.

Rank r multiplies its positions by its columns of E. One all-reduce adds the rows of all ranks,
(k x M) values for each sample whatever N is, and what their scale is made of. Afterwards all ranks
have the same compressed keys and values.

`dynamic` is a softmax over all positions. Its weights are computed relative to the maximum over all
ranks, which takes an all-reduce of k numbers more; the denominators are added with the rows.

Legend: B batch, N positions, S positions of this rank, R compressed rows, M model size, G key/value
heads, D head size, P sides (1 when E = F), T heads with a matrix of their own (1 or G).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import checks
from ..core.biased_projection import BiasedProjection
from ..core.compressed_kv import CompressedKV
from ..core.cost import AttentionShape
from ..core.cpu.predicate import is_unmodified_linear
from ..core.dynamic_projection import DynamicProjection
from ..core.numerics import at_least_float32, batched_matmul
from ..core.plain_sdpa import zero_padding
from ..core.plan import choose
from ..core.projection import Compression, MatrixCompression, Projection, StoredProjection
from ..core.projection_kinds import check_passed_projection
from ..core.segment_projection import ConvProjection, MeanProjection, SegmentCompression
from ..core.visible_scale import visible_scale
from .collectives import all_reduce_max, all_reduce_together
from .parts import bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..core.attention import LinformerAttention
    from .parts import Part, Span

SUPPORTED = ("linear", "fixed", "dynamic", "conv", "mean")  # E X is a sum over positions


class _Partial(NamedTuple):
    """E_r of this rank: the sums over its positions, and what becomes of them when added."""

    compression: Compression  # without scale
    prepare: Callable[[Tensor], Tensor]  # the rows of this rank, as the compression takes them
    place: Callable[[Tensor, int], Tensor]  # its rows, along a dimension, among the R rows
    shape: tuple[int, int]  # P, T
    statistics: list[Tensor]  # (1 or B, P, T, R) each, to be added
    scale: Callable[[Sequence[Tensor]], Tensor] | None  # of the sums of the statistics
    keep: Callable[[Sequence[Tensor]], Tensor] | None  # (B, R), likewise
    bias: Tensor | None = None  # (P, T, R)


class _Summed(Compression):
    """What a layer asks of the rows after the all-reduce."""

    def __init__(self, sums: Tensor | None, keep: Tensor | None, bias: Tensor | None) -> None:
        self.sums, self.keep, self.bias = sums, keep, bias

    def row_sums(self) -> Tensor:
        assert self.sums is not None
        return self.sums


class SpanSums(NamedTuple):
    """What one span adds to the compressed rows, and the rows of the sums over all spans."""

    tensors: list[Tensor]
    finish: Callable[[Sequence[Tensor]], CompressedKV]


def compress(
    layer: LinformerAttention,
    x: Tensor,
    part: Part,
    projection: Projection | None,
    *,
    heads: tuple[Tensor, Tensor] | None = None,
    also: Sequence[Tensor] = (),
) -> tuple[CompressedKV, list[Tensor]]:
    """E K and F V of the whole sequence, (B, G, R, D) each; x (B, S, M), padded rows zero.

    heads: the keys and values of x (B, S, G, D), if they are known. `also`: tensors to be added
    over the ranks by the same all-reduce; returned added.
    """
    own = sums_of_span(
        layer, x, part, projection, heads=heads, highest=lambda m: all_reduce_max(m, part.group)
    )
    total = all_reduce_together([*own.tensors, *also], part.group)
    count = len(own.tensors)
    return own.finish(total[:count]), total[count:]


def sums_of_span(
    layer: LinformerAttention,
    x: Tensor,
    span: Span,
    projection: Projection | None,
    *,
    heads: tuple[Tensor, Tensor] | None = None,
    highest: Callable[[Tensor], Tensor],
    input_first: bool | None = None,
) -> SpanSums:
    """What the positions x (B, S, M) of a span add to the compressed keys and values.

    `highest`, for `dynamic`: the maximum over all spans, given that of this one. `input_first`:
    whether (E X) W_k is computed, or E (X W_k); by default what is cheaper.
    """
    projection = check_passed_projection(projection, own=layer.projection, k=layer.k)
    partial = _partial(projection, x, span, None if layer.k == projection.k else layer.k, highest)
    linears = (layer.k_proj, layer.v_proj)
    own, rows = partial.compression, partial.prepare
    if input_first is None:
        input_first = _input_first(layer, x, span, partial)
    if input_first and all(map(is_unmodified_linear, linears)):
        local = [partial.place(own.compress_input(rows(x)), 3)]  # E X: (B, P, T, R, M)
        if any(linear.bias is not None for linear in linears):
            local.append(partial.place(own.row_sums(), 3))
        finish = _finish_input
    else:  # E (X W_k)
        if heads is None:
            key, value = (
                zero_padding(linear(x), span.mask).unflatten(2, (layer.num_kv_heads, -1))
                for linear in linears
            )
        else:
            key, value = (_zero_heads(each, span.mask) for each in heads)
        local = [
            partial.place(own.compress_keys(_prepare_heads(rows, each), side), 2)
            for side, each in enumerate((key, value))
        ]  # (B, G, R, D) each
        finish = _finish_keys
    count = len(local)
    return SpanSums(
        [*local, *partial.statistics],
        lambda total: finish(layer, partial, total[:count], total[count:]),
    )


def _finish_input(
    layer: LinformerAttention, partial: _Partial, total: Sequence[Tensor], added: Sequence[Tensor]
) -> CompressedKV:
    """(E X) W_k + (E 1) b"""
    scale = None if partial.scale is None else partial.scale(added)
    both, sums = total[0], total[1] if len(total) > 1 else None
    if scale is not None:
        both = both * scale[..., None].to(both.dtype)
        sums = None if sums is None else sums * scale
    keep = None if partial.keep is None else partial.keep(added)
    summed = _Summed(sums, keep, partial.bias)
    key = layer._linear(layer.k_proj, both[:, 0]) + layer._bias(0, summed)
    value = layer._linear(layer.v_proj, both[:, -1]) + layer._bias(1, summed)
    return CompressedKV(*summed.add_bias(key, value), keep)


def _finish_keys(
    layer: LinformerAttention, partial: _Partial, total: Sequence[Tensor], added: Sequence[Tensor]
) -> CompressedKV:
    """E (X W_k + b)"""
    key, value = total
    if partial.scale is not None:
        scale = partial.scale(added)[..., None].to(key.dtype)  # (1 or B, P, T, R, 1)
        key, value = key * scale[:, 0], value * scale[:, -1]
    keep = None if partial.keep is None else partial.keep(added)
    return CompressedKV(*_Summed(None, keep, partial.bias).add_bias(key, value), keep)


def _input_first(layer: LinformerAttention, x: Tensor, part: Span, partial: _Partial) -> bool:
    """Whether (E X) W_k is computed and not E (X W_k): by sizes that all spans have in common."""
    if layer.plan is not None:
        return layer.plan.shorten == "input"
    if math.prod(partial.shape) > 2:  # E X would have more channels than E K and F V
        return False
    shape = AttentionShape.of(layer, batch=x.shape[0], length=part.length, context=part.length)
    return choose(shape).shorten == "input"


def _partial(
    projection: Projection,
    x: Tensor,
    part: Span,
    rows: int | None,
    highest: Callable[[Tensor], Tensor],
) -> _Partial:
    if isinstance(projection, StoredProjection):
        return _stored(projection, part, rows)
    if isinstance(projection, DynamicProjection):
        return _dynamic(projection, x, part, rows, highest)
    if isinstance(projection, ConvProjection | MeanProjection):
        return _segments(projection, x, part, rows)
    raise TypeError(f"{type(projection).__name__} is not a sum over positions.")  # see swap.check


def _stored(projection: StoredProjection, part: Span, rows: int | None) -> _Partial:
    """`linear` and `fixed`: the columns of E that belong to the positions of this rank."""
    checks.at_most_max_length(type(projection).__name__, part.length, projection.max_length)
    weight = projection._first_rows(rows)
    sides, heads, count, max_length = weight.shape
    weight = weight.flatten(0, 2)  # (P*T*R, max_length)
    own = weight[:, part.start : part.end]
    statistics: list[Tensor] = []
    scale = None
    if projection.keep_scale and not (part.length == max_length and part.mask is None):
        squares = at_least_float32(own).square()
        mask = part.mask
        visible = squares.sum(-1) if mask is None else mask.to(squares.dtype) @ squares.T
        # |E_j|^2 over all columns, of which each rank adds a share, whatever positions it holds.
        shares = bounds(max_length, len(part.held))
        first, last = shares[part.rank]
        total = at_least_float32(weight[:, first:last]).square().sum(-1)
        shape = (-1, sides, heads, count)
        statistics = [visible.view(shape), total.view(shape)]

        def scale(added: Sequence[Tensor]) -> Tensor:
            return visible_scale(added[1], added[0]).to(weight.dtype)

    bias = projection.bias[:, :, :count] if isinstance(projection, BiasedProjection) else None
    return _Partial(
        MatrixCompression(own, sides=sides, heads=heads, mask=part.mask),
        _as_it_is,
        _all_rows,
        (sides, heads),
        statistics,
        scale,
        None,
        bias,
    )


def _dynamic(
    projection: DynamicProjection,
    x: Tensor,
    part: Span,
    rows: int | None,
    highest: Callable[[Tensor], Tensor],
) -> _Partial:
    """exp(s - max s) at the positions of this rank, and its sum."""
    weight = projection.weight if rows is None else projection.weight[:, :, :rows]
    sides, heads, count, dim = weight.shape
    scores = at_least_float32(
        batched_matmul(weight.reshape(-1, dim), x.transpose(1, 2))
    )  # (B, P*T*R, S)
    lowest = torch.finfo(scores.dtype).min
    if part.mask is not None:
        scores = scores.masked_fill(~part.mask[:, None], lowest)
    matrix = (scores - highest(scores.amax(-1, keepdim=True))).exp()
    if part.mask is not None:  # a sample of padding alone has no weight at all
        matrix = matrix.masked_fill(~part.mask[:, None], 0.0)
    total = matrix.sum(-1).view(-1, sides, heads, count)

    def scale(added: Sequence[Tensor]) -> Tensor:
        return 1.0 / torch.where(added[0] > 0, added[0], 1.0)

    compression = MatrixCompression(matrix.to(x.dtype), sides=sides, heads=heads, mask=part.mask)
    return _Partial(compression, _as_it_is, _all_rows, (sides, heads), [total], scale, None)


def _segments(
    projection: ConvProjection | MeanProjection, x: Tensor, part: Span, rows: int | None
) -> _Partial:
    """`conv` and `mean`: the segments that begin, end or lie in the positions of this rank."""
    width = projection._width(rows)
    learned = isinstance(projection, ConvProjection)
    taps = x.new_full((1, 1, width), 1.0 / width)
    if isinstance(projection, ConvProjection):
        taps = projection.weight
    before = part.start % width  # positions of the first segment on ranks before this one
    real = F.pad(part.real(x.device), (before, 0))  # (1 or B, before + S)
    compression = SegmentCompression(taps, length=real.shape[1], mask=real, norm=None)
    total_rows = -(-part.length // width)
    first = part.start // width
    after = total_rows - first - compression.segments.shape[1]

    def place(sums: Tensor, dim: int) -> Tensor:
        return F.pad(sums, (0, 0) * (sums.dim() - 1 - dim) + (first, after))

    def prepare(some: Tensor) -> Tensor:
        return F.pad(some, (0, 0, before, 0)) if before else some

    incomplete = part.length % width != 0 or part.mask is not None
    keeps_scale = not isinstance(projection, ConvProjection) or projection.keep_scale
    present = compression.segments.to(torch.promote_types(taps.dtype, torch.float32))
    statistics: list[Tensor] = []
    scale = keep = None
    if incomplete:
        count = place(present.sum(-1), 1)  # (1 or B, R)
        statistics.append(count[:, None, None])
    if part.mask is not None:

        def keep(added: Sequence[Tensor]) -> Tensor:
            return added[0][:, 0, 0] > 0

    if incomplete and keeps_scale and learned:
        squares = at_least_float32(taps.flatten(0, 1)).square()  # (P*T, width)
        visible = place(present @ squares.T, 1)  # (1 or B, R, P*T)
        statistics.append(visible.unflatten(-1, taps.shape[:2]).permute(0, 2, 3, 1))
        whole = squares.sum(-1).view(1, *taps.shape[:2], 1)

        def scale(added: Sequence[Tensor]) -> Tensor:
            return visible_scale(whole.expand_as(added[1]), added[1]).to(taps.dtype)

    elif incomplete and keeps_scale:

        def scale(added: Sequence[Tensor]) -> Tensor:
            return (width / added[0].clamp_min(1.0)).to(taps.dtype)

    return _Partial(
        compression, prepare, place, (taps.shape[0], taps.shape[1]), statistics, scale, keep
    )


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def _all_rows(sums: Tensor, dim: int) -> Tensor:
    return sums


def _prepare_heads(prepare: Callable[[Tensor], Tensor], heads: Tensor) -> Tensor:
    """(B, S, G, D) by a function of (B, S, C)."""
    return prepare(heads.flatten(2)).unflatten(2, heads.shape[2:])


def _zero_heads(heads: Tensor, mask: Tensor | None) -> Tensor:
    """Keys or values (B, S, G, D) with zeros at padding, where a bias of W_k is not zero."""
    return heads if mask is None else heads.masked_fill(~mask[..., None, None], 0.0)
