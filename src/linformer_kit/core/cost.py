"""Closed-form parameters, multiplications and activation bytes of every configuration.

FLOPs are those of the matrix products (2 for a multiply-add), which is what
`torch.utils.flop_counter` counts; softmax, norms and activations are not counted, nor is
a padding mask, which adds less than 1/M of them.

Legend: B batch, N queries, S context positions, R compressed rows, H heads, G key/value heads,
D head size, M model size, P sides (1 when E = F), T heads with a matrix of their own (1 or G).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from .moving_average import WIDTH
from .positions import LearnedPositions
from .projection_kinds import (
    NOT_A_MATRIX,
    SEGMENT_KINDS,
    ProjectionKind,
    Sharing,
    learned_row_biases,
    sides_and_heads,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .activations import Activation
    from .attention import LinformerAttention
    from .encoder import EncoderLayer, LinformerEncoder

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
    out_bias: bool = True
    projection_bias: bool = False
    context_dim: int | None = None
    window: int = 0
    global_tokens: int = 0

    @classmethod
    def of(
        cls, layer: LinformerAttention, *, batch: int, length: int, context: int | None = None
    ) -> AttentionShape:
        """The sizes of one call of a layer."""
        return cls(
            batch=batch,
            length=length,
            context=context,
            dim=layer.dim,
            num_heads=layer.num_heads,
            k=layer.k,
            max_length=layer.max_length,
            head_dim=layer.head_dim,
            num_kv_heads=layer.num_kv_heads,
            projection=layer.kind,
            sharing=layer.sharing,
            bias=layer.q_proj.bias is not None,
            out_bias=layer.out_proj.bias is not None,
            projection_bias=layer.projection_bias,
            context_dim=layer.context_dim,
            window=layer.window,
            global_tokens=layer.global_tokens,
        )

    @property
    def positions(self) -> int:
        """S"""
        return self.length if self.context is None else self.context

    @property
    def source_dim(self) -> int:
        """The width of the compressed input."""
        return self.dim if self.context_dim is None else self.context_dim

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
        """The width of a segment, for the kinds that have one."""
        assert self.max_length is not None
        assert self.k is not None
        return math.ceil(self.max_length / self.k)

    @property
    def rows(self) -> int:
        """R"""
        if self.projection == "full":
            return self.positions
        if self.k == 0:
            return 0
        if self.projection in SEGMENT_KINDS:
            return math.ceil(self.positions / self.width)
        assert self.k is not None
        return self.k

    @property
    def has_exact_keys(self) -> bool:
        return self.window > 0 or self.global_tokens > 0

    @property
    def matrices(self) -> int:
        """P * T"""
        if self.projection in ("mean", "max", "full"):
            return 1
        return math.prod(sides_and_heads(self.sharing, self.num_kv_heads or self.num_heads))


def shorten_flops(shape: AttentionShape, order: Shorten) -> int:
    """The compressed keys and values of the context. With a window those of all positions are
    needed too; they are counted in `attend_flops`.
    """
    s = shape
    if s.k == 0:
        return 0
    content = 0  # the scores that E is made of
    if s.projection in ("dynamic", "pool"):
        scores = s.matrices * (s.rows if s.projection == "dynamic" else 1)
        content = 2 * s.batch * s.positions * scores * s.source_dim
    if s.projection == "full":
        return 2 * 2 * s.batch * s.positions * s.source_dim * s.kv_inner

    def apply(matrices: int, channels: int) -> int:
        if s.projection in NOT_A_MATRIX:
            return 0
        if s.projection in SEGMENT_KINDS:
            return 2 * s.batch * s.rows * s.width * matrices * channels
        return 2 * s.batch * s.positions * s.rows * matrices * channels

    if order == "input":
        through_weights = 2 * 2 * s.batch * s.rows * s.source_dim * s.kv_inner
        return content + apply(s.matrices, s.source_dim) + through_weights
    through_weights = 2 * 2 * s.batch * s.positions * s.source_dim * s.kv_inner
    if s.has_exact_keys:
        through_weights = 0
    return content + 2 * apply(1, s.kv_inner) + through_weights


def attend_flops(shape: AttentionShape, form: Attend) -> int:
    """W_q, the attention and W_o."""
    s = shape
    if form == "fused":
        projections = 2 * 2 * s.batch * s.length * s.dim * s.inner
        if s.has_exact_keys:
            return projections + _exact_flops(s)
        return projections + 2 * 2 * s.batch * s.length * s.rows * s.inner
    fold = 2 * 2 * s.batch * s.rows * s.dim * s.inner
    bias = 2 * s.batch * s.rows * s.inner if s.bias else 0
    return fold + bias + 2 * 2 * s.batch * s.length * s.dim * s.num_heads * s.rows


def _exact_flops(shape: AttentionShape) -> int:
    """The attention to exact keys and compressed rows, and the exact keys and values."""
    s = shape
    size = s.window or s.length
    queries = math.ceil(s.length / size) * size  # the last chunk is padded
    seen = min(s.global_tokens, s.length)
    pairs = queries * ((3 * s.window) + s.rows + seen) + seen * s.length
    return 2 * 2 * s.batch * (s.length * s.dim * s.kv_inner + pairs * s.inner)


def attention_flops(shape: AttentionShape, *, shorten: Shorten, attend: Attend) -> int:
    """One forward pass of an attention layer. A training step costs three times as much."""
    return shorten_flops(shape, shorten) + attend_flops(shape, attend)


def projection_parameters(shape: AttentionShape) -> int:
    """The parameters of E and F of one layer (of the whole model, when shared layerwise)."""
    s = shape
    if s.k == 0:
        return 0
    if s.projection == "linear":
        assert s.k is not None
        assert s.max_length is not None
        return s.matrices * s.k * (s.max_length + s.projection_bias)
    if s.projection == "conv":
        return s.matrices * s.width
    if s.projection == "pool":
        return s.matrices * s.source_dim
    if s.projection == "dynamic":
        assert s.k is not None
        return s.matrices * s.k * s.source_dim
    return 0


def attention_parameters(shape: AttentionShape, *, with_projection: bool = True) -> int:
    """W_q, W_k, W_v, W_o and their biases, and what `projection_parameters` counts."""
    s = shape
    weights = 2 * s.dim * s.inner + 2 * s.source_dim * s.kv_inner
    biases = s.inner + 2 * s.kv_inner if s.bias else 0
    biases += s.dim if s.out_bias else 0
    if s.has_exact_keys:
        biases += s.num_heads * learned_row_biases(s.projection, s.k)  # of the rows' scores
    return weights + biases + (projection_parameters(s) if with_projection else 0)


def attention_activation_bytes(
    shape: AttentionShape, *, shorten: Shorten, attend: Attend, itemsize: int = 4
) -> int:
    """What autograd saves of one forward pass for the backward pass, including the input.

    Without masks and dropout. Terms independent of batch and length are not counted.
    """
    s = shape
    source = s.batch * s.positions * s.source_dim
    queries = s.batch * s.length * s.dim if s.context is not None else 0
    pair = 2 * s.batch * s.rows * s.kv_inner  # compressed keys and values
    kept = source + queries + pair
    if s.projection == "dynamic":
        kept += s.batch * s.matrices * s.rows * s.positions  # E itself
    if s.projection == "pool":
        kept += s.batch * s.matrices * s.positions
    if s.projection == "full":
        kept -= pair
    if s.projection == "full" or shorten == "keys":
        if s.projection not in ("mean", "fixed"):  # constants: no gradient needs the keys
            kept += 2 * s.batch * s.positions * s.kv_inner
        if s.projection == "dynamic" and s.sharing == "none":
            kept += s.batch * s.matrices * s.rows * s.positions  # E once more, sorted by head
    else:
        kept += s.batch * s.matrices * s.rows * s.source_dim
    if attend == "fused":
        kept += 2 * s.batch * s.length * s.inner  # queries, and the output of the heads
        kept += s.batch * s.length * s.num_heads  # the softmax denominators
    else:
        kept += s.batch * s.length * s.num_heads * s.rows  # the attention weights
        kept += 2 * s.batch * s.num_heads * s.rows * s.dim  # A and B
    return kept * itemsize


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """The sizes of an encoder: one attention shape for each layer, and the sizes of the rest."""

    layers: tuple[AttentionShape, ...]
    ff_dim: int
    activation: Activation = "gelu"
    final_norm: bool = True
    learned_positions: bool = False
    neighbours: int = 0
    moving_average: bool = False

    @classmethod
    def of(cls, encoder: LinformerEncoder, *, batch: int, length: int) -> EncoderShape:
        """The sizes of one call of an encoder."""
        layers: list[EncoderLayer] = list(encoder.layers)  # type: ignore[arg-type]
        first = layers[0]
        conv = encoder.neighbours
        return cls(
            layers=tuple(each.attention.shape(batch=batch, length=length) for each in layers),
            ff_dim=first.feed_forward.w_2.in_features,
            activation=first.feed_forward.activation,
            final_norm=encoder.final_norm is not None,
            learned_positions=isinstance(encoder.positions, LearnedPositions),
            neighbours=0 if conv is None else conv.weight.shape[1],
            moving_average=encoder.moving_average is not None,
        )

    @property
    def wide(self) -> int:
        """The rows of W_1."""
        return self.ff_dim * (2 if self.activation == "swiglu" else 1)


def feed_forward_flops(shape: EncoderShape) -> int:
    """The feed-forward part of one layer."""
    first = shape.layers[0]
    return 2 * first.batch * first.length * first.dim * (shape.wide + shape.ff_dim)


def encoder_flops(shape: EncoderShape, plans: tuple[tuple[Shorten, Attend], ...]) -> int:
    """One forward pass; `plans` gives (shorten, attend) of each layer."""
    attention = sum(
        attention_flops(layer, shorten=shorten, attend=attend)
        for layer, (shorten, attend) in zip(shape.layers, plans, strict=True)
    )
    first = shape.layers[0]
    per_row = 2 * first.dim * shape.neighbours
    if shape.moving_average:
        per_row += 2 * 2 * first.dim**2  # W_1 and W_2
    mixing = first.batch * first.length * per_row
    if shape.moving_average:
        mixing += first.batch * first.dim * decayed_sum_flops(first.length)
    return attention + len(shape.layers) * feed_forward_flops(shape) + mixing


def decayed_sum_flops(length: int) -> int:
    """One channel of `moving_average.decayed_sum`: chunks, then the ends of chunks, and so on."""
    return sum(2 * chunks * width**2 for width, chunks in _levels(length))


def _levels(length: int) -> Iterator[tuple[int, int]]:
    """The width and the number of chunks, then those of the chunks' ends, until there is one."""
    while True:
        width = min(WIDTH, length)
        length = -(-length // width)
        yield width, length
        if length == 1:
            return


def encoder_parameters(shape: EncoderShape) -> int:
    """All parameters of an encoder."""
    first, depth = shape.layers[0], len(shape.layers)
    shared = first.sharing == "layerwise"
    attention = sum(attention_parameters(s, with_projection=not shared) for s in shape.layers)
    feed_forward = first.dim * (shape.wide + shape.ff_dim)
    if first.out_bias:
        feed_forward += shape.wide + first.dim
    norms = 2 * 2 * first.dim * depth + (2 * first.dim if shape.final_norm else 0)
    total = attention + depth * feed_forward + norms
    if shared and first.projection != "full":
        total += projection_parameters(replace(first, k=max(s.k or 0 for s in shape.layers)))
    if shape.learned_positions:
        assert first.max_length is not None
        total += first.max_length * first.dim
    if shape.moving_average:  # two linear layers, a norm, and times
        total += 2 * first.dim * (first.dim + int(first.out_bias)) + 3 * first.dim
    return total + first.dim * shape.neighbours


def encoder_activation_bytes(
    shape: EncoderShape, plans: tuple[tuple[Shorten, Attend], ...], *, itemsize: int = 4
) -> int:
    """What autograd saves of one forward pass of an encoder on the CPU fast path.

    Without masks, dropout and checkpointing.
    """
    first = shape.layers[0]
    rows = first.batch * first.length
    total = 0
    for layer, (shorten, attend) in zip(shape.layers, plans, strict=True):
        total += attention_activation_bytes(
            layer, shorten=shorten, attend=attend, itemsize=itemsize
        )
        statistics = 2 * 2 * rows
        # Each norm saves its input; W_1 saves its own; the hidden layer is saved once.
        total += itemsize * (rows * (2 * first.dim + first.dim + shape.wide) + statistics)
    if shape.final_norm:
        total += itemsize * rows * (first.dim + 2)  # the final norm's
    if shape.neighbours:
        total += itemsize * rows * first.dim  # the input of the short convolution
    if shape.moving_average:  # the inputs of W_1, of the sums, of the norm, of gelu and of W_2
        total += itemsize * rows * (5 * first.dim + 2)
        # The weights inside a chunk, before and after those of later rows are hidden.
        total += itemsize * first.dim * sum(2 * width**2 for width, _ in _levels(first.length))
    return total
