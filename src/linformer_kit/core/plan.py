"""The order of multiplication: which of several equal forms of the attention is cheapest.

Two decisions, independent of each other:

shorten: where E stands.
    "keys"   E (X W_k)    every position goes through W_k and W_v, then the rows are mixed
    "input"  (E X) W_k    the rows are mixed first; only R of them go through W_k and W_v
attend: how the queries meet the shortened keys and values of head h.
    "fused"     softmax(X W_q,h K_h^T) V_h W_o,h   left to right, on the fused attention kernel
    "absorbed"  softmax(X A_h) B_h with A_h = W_q,h K_h^T (M x R) and B_h = V_h W_o,h (R x M)

All four combinations give the same result. With one matrix for all heads "input" nearly always
wins, by up to 2x; with a matrix for each head it costs S*M*(H R) and loses once H R > M + R.
"absorbed" costs N*M*(H R) where "fused" costs N*M*(H D + R): it wins when H R is below about M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from . import checks
from .cost import Attend, AttentionShape, Shorten, attend_flops, shorten_flops


@dataclass(frozen=True)
class Plan:
    """One order of multiplication."""

    shorten: Shorten
    attend: Attend

    def __post_init__(self) -> None:
        checks.one_of("shorten", self.shorten, get_args(Shorten))
        checks.one_of("attend", self.attend, get_args(Attend))


def choose(shape: AttentionShape) -> Plan:
    """The cheapest plan for one call, by the count of multiplications."""
    return Plan(shorten=choose_shorten(shape), attend=choose_attend(shape))


def choose_shorten(shape: AttentionShape) -> Shorten:
    if shape.projection == "full":
        return "keys"  # nothing is shortened
    if shape.projection == "max":
        return "input"  # not a matrix: the maximum is defined on the input
    cheaper = shorten_flops(shape, "input") <= shorten_flops(shape, "keys")
    return "input" if cheaper else "keys"


def choose_attend(shape: AttentionShape) -> Attend:
    cheaper = attend_flops(shape, "fused") <= attend_flops(shape, "absorbed")
    return "fused" if cheaper else "absorbed"
