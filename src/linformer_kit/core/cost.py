"""Closed-form parameters, multiplications and activation bytes of every configuration.

FLOPs are those of the matrix products (2 for a multiply-add), which is what
`torch.utils.flop_counter` counts; softmax, norms and activations are left out. A padding mask
adds less than 1/M of them and is left out too.

Legend: B batch, N queries, S context positions, R shortened rows, H heads, G key/value heads,
D head size, M model size, P sides (1 when E = F), T heads with a matrix of their own (1 or G).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from .projection import ProjectionKind, Sharing, sides_and_heads

Shorten = Literal["input", "keys"]
Attend = Literal["fused", "absorbed"]


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The sizes of one call of an attention layer; `context` is the length for cross-attention."""

    batch: int
    length: int
    dim: int
    num_heads: int
    k: int | None
    max_length: int | None = None
    context: int | None = None
    head_dim: int | None = None
    num_kv_heads: int | None = None
    projection: ProjectionKind = "linear"
    sharing: Sharing = "kv"
    bias: bool = True

    @property
    def positions(self) -> int:
        """S"""
        return self.length if self.context is None else self.context

    @property
    def inner(self) -> int:
        """H * D"""
        return self.num_heads * (self.head_dim or self.dim // self.num_heads)

    @property
    def kv_inner(self) -> int:
        """G * D"""
        return self.inner // self.num_heads * (self.num_kv_heads or self.num_heads)

    @property
    def width(self) -> int:
        """The width of a window, for the kinds that have one."""
        assert self.max_length is not None and self.k is not None
        return math.ceil(self.max_length / self.k)

    @property
    def rows(self) -> int:
        """R"""
        if self.projection == "full":
            return self.positions
        if self.projection in ("conv", "mean", "max"):
            return math.ceil(self.positions / self.width)
        assert self.k is not None
        return self.k

    @property
    def matrices(self) -> int:
        """P * T"""
        if self.projection in ("mean", "max", "full"):
            return 1
        return math.prod(sides_and_heads(self.sharing, self.num_kv_heads or self.num_heads))


def shorten_flops(shape: AttentionShape, order: Shorten) -> int:
    """Making the shortened keys and values out of the context."""
    s = shape
    content = 0  # dynamic: the scores that E is made of
    if s.projection == "dynamic":
        content = 2 * s.batch * s.positions * s.matrices * s.rows * s.dim
    if s.projection == "full":
        return 2 * 2 * s.batch * s.positions * s.dim * s.kv_inner

    def apply(matrices: int, channels: int) -> int:
        if s.projection == "max":
            return 0
        if s.projection in ("conv", "mean"):
            return 2 * s.batch * s.rows * s.width * matrices * channels
        return 2 * s.batch * s.positions * s.rows * matrices * channels

    if order == "input":
        through_weights = 2 * 2 * s.batch * s.rows * s.dim * s.kv_inner
        return content + apply(s.matrices, s.dim) + through_weights
    through_weights = 2 * 2 * s.batch * s.positions * s.dim * s.kv_inner
    return content + 2 * apply(1, s.kv_inner) + through_weights


def attend_flops(shape: AttentionShape, form: Attend) -> int:
    """Everything the queries take part in, from W_q to W_o."""
    s = shape
    if form == "fused":
        projections = 2 * 2 * s.batch * s.length * s.dim * s.inner
        return projections + 2 * 2 * s.batch * s.length * s.rows * s.inner
    fold = 2 * 2 * s.batch * s.rows * s.dim * s.inner
    bias = 2 * s.batch * s.rows * s.inner if s.bias else 0
    return fold + bias + 2 * 2 * s.batch * s.length * s.dim * s.num_heads * s.rows
