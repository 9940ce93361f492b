"""The order of the matrix products: which of several equal forms of the attention is cheapest.

Two independent decisions:

shorten: when keys and values are compressed by E.
    "keys"   E (X W_k)    every position is multiplied by W_k and W_v, then the rows are compressed
    "input"  (E X) W_k    the rows are compressed first; only R rows are multiplied by W_k and W_v
attend: how queries attend to the compressed keys and values of head h.
    "fused"     softmax(X W_q,h K_h^T) V_h W_o,h   left to right, on the fused attention kernel
    "absorbed"  softmax(X A_h) B_h with A_h = W_q,h K_h^T (M x R) and B_h = V_h W_o,h (R x M)

All four combinations give the same result. With one matrix for all heads "input" is nearly always
cheaper, by up to 2x; with a matrix for each head it costs S*M*(H R), too much once H R > M + R.
"absorbed" costs N*M*(H R) where "fused" costs N*M*(H D + R): it is cheaper if H R is below about M.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, get_args

import torch

from . import checks
from .cost import Attend, AttentionShape, Shorten, attend_flops, shorten_flops
from .cpu.predicate import is_unmodified_linear
from .projection_kinds import NOT_A_MATRIX, SEGMENT_KINDS

if TYPE_CHECKING:
    from torch import Tensor

    from .attention import LinformerAttention
    from .projection_kinds import ProjectionKind, Sharing

_LONG = 4096  # the length that a traced layer without max_length is planned for


@dataclass(frozen=True)
class Plan:
    """One order of the matrix products."""

    shorten: Shorten
    attend: Attend

    def __post_init__(self) -> None:
        checks.one_of("shorten", self.shorten, get_args(Shorten))
        checks.one_of("attend", self.attend, get_args(Attend))


def check_plan(plan: Plan | None, kind: str, *, exact_keys: bool = False) -> None:
    """Refuse a plan that is undefined for a kind of projection, or with `exact_keys` (a window)."""
    if plan is not None and plan.attend == "absorbed" and exact_keys:
        raise ValueError(
            "a window and global tokens need the queries themselves, which plan.attend='absorbed' "
            "never computes. Use attend='fused', or leave plan=None."
        )
    if plan is not None and kind in NOT_A_MATRIX and plan.shorten == "keys":
        raise ValueError(
            f"{kind} pooling is defined on the input, because it does not commute with W_k: got "
            "plan.shorten='keys'. Use shorten='input', or leave plan=None."
        )


def plan_for(layer: LinformerAttention, context: Tensor, queries: int) -> Plan:
    """The plan of one call: the layer's own, or the cheapest for the sizes of the call.

    W_q and W_o are folded into keys and values only if they are unmodified linear layers.
    """
    foldable = is_unmodified_linear(layer.q_proj) and is_unmodified_linear(layer.out_proj)
    if layer.plan is not None:
        check_plan(layer.plan, layer.kind, exact_keys=layer.has_exact_keys)
        return layer.plan if foldable else Plan(layer.plan.shorten, "fused")
    if torch.compiler.is_compiling():
        # Sizes may be symbols, and one plan is used for all of them: the one for long inputs.
        length = layer.max_length or _LONG
        plan = choose(AttentionShape.of(layer, batch=1, length=length, context=length))
        # The number of rows of a segment kind is then a symbol too, which folding cannot handle.
        foldable = foldable and layer.kind not in SEGMENT_KINDS
    else:
        batch, length, _ = context.shape
        plan = _cached(
            batch,
            queries,
            layer.dim,
            layer.num_heads,
            layer.k,
            layer.max_length,
            length,
            layer.head_dim,
            layer.num_kv_heads,
            layer.kind,
            layer.sharing,
            layer.context_dim,
            layer.q_proj.bias is not None,
            layer.window,
            layer.global_tokens,
        )
    return plan if foldable or plan.attend == "fused" else Plan(plan.shorten, "fused")


@lru_cache(maxsize=4096)
def _cached(
    batch: int,
    queries: int,
    dim: int,
    num_heads: int,
    k: int | None,
    max_length: int | None,
    length: int,
    head_dim: int,
    num_kv_heads: int,
    kind: ProjectionKind,
    sharing: Sharing,
    context_dim: int,
    bias: bool,
    window: int,
    global_tokens: int,
) -> Plan:
    """`choose` by plain values, so that a call of known sizes builds no shape."""
    return choose(
        AttentionShape(
            batch=batch,
            length=queries,
            dim=dim,
            num_heads=num_heads,
            k=k,
            max_length=max_length,
            context=length,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            projection=kind,
            sharing=sharing,
            context_dim=context_dim,
            bias=bias,
            window=window,
            global_tokens=global_tokens,
        )
    )


def choose(shape: AttentionShape) -> Plan:
    """The cheapest plan for one call, by the number of multiplications."""
    return Plan(shorten=_choose_shorten(shape), attend=_choose_attend(shape))


def _choose_shorten(shape: AttentionShape) -> Shorten:
    if shape.projection == "full":
        return "keys"  # nothing is compressed
    if shape.projection in NOT_A_MATRIX:
        return "input"  # not a matrix: the maximum is defined on the input
    cheaper = shorten_flops(shape, "input") <= shorten_flops(shape, "keys")
    return "input" if cheaper else "keys"


def _choose_attend(shape: AttentionShape) -> Attend:
    if shape.has_exact_keys:
        return "fused"  # exact keys cannot be folded into W_q
    cheaper = attend_flops(shape, "fused") <= attend_flops(shape, "absorbed")
    return "fused" if cheaper else "absorbed"
