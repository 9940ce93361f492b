"""Compressed keys and values of a sequence that is cut over ranks: E X = sum over ranks of E_r X_r.

One all-reduce adds the rows of all ranks, (k x M) values for each sample whatever N is, and what
their scale is made of. Afterwards all ranks have the same compressed keys and values. The maximum
of the scores of `dynamic` takes an all-reduce of k numbers more.

Legend: B batch, N positions, S positions of this rank, R compressed rows, M model size, G key/value
heads, D head size, P sides (1 when E = F), T heads with a matrix of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.cost import AttentionShape
from ..core.plan import Plan, choose
from ..core.projection_kinds import sides_and_heads
from .collectives import all_reduce_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..core.attention import LinformerAttention
    from ..core.compressed_kv import CompressedKV
    from ..core.projection import Projection, Span
    from .parts import Part


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
    plan = plan_of_span(layer, x, part)
    own, _ = layer.span_sums(x, part, projection, plan, heads=heads)
    total = all_reduce_together([*own.tensors, *also], part.group)
    count = len(own.tensors)
    return own.finish(total[:count]), total[count:]


def plan_of_span(layer: LinformerAttention, x: Tensor, span: Span) -> Plan:
    """Whether (E X) W_k is computed, or E (X W_k): by sizes that all spans have in common."""
    if layer.plan is not None:
        return layer.plan
    sides, heads = sides_and_heads(layer.sharing, layer.num_kv_heads)
    if sides * heads > 2:  # E X would have more channels than E K and F V
        return Plan("keys", "fused")
    length = span.length
    return choose(AttentionShape.of(layer, batch=x.shape[0], length=length, context=length))
