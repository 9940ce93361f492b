"""The Linformer encoder: attention and feed-forward layers, in O(n k).

Legend: B batch, N positions, M model size, R shortened rows, H heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, overload

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import checks
from .attention import DropoutKind, LinformerAttention
from .blocks import in_row_blocks, in_sample_groups
from .cost import EncoderShape
from .dropout import dropout
from .fastpath import under_transform
from .feedforward import Activation, FeedForward
from .names import explain_unknown_names
from .neighbours import build_neighbours
from .positions import LearnedPositions, Positions, build_positions
from .projection import Projection, ProjectionKind, Sharing, build_projection, check_projection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .plan import Plan

Norm = Literal["pre", "post"]


class EncoderLayer(nn.Module):
    """Attention, then feed-forward, each with its norm and its residual.

    pre:   x = x + drop(attention(norm(x)));  x = x + drop(feed_forward(norm(x)))
    post:  x = norm(x + drop(attention(x)));  x = norm(x + drop(feed_forward(x)))
    """

    def __init__(
        self,
        attention: LinformerAttention,
        feed_forward: FeedForward,
        *,
        norm: Norm = "pre",
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.norm: Norm = norm
        self.attention_norm = nn.LayerNorm(attention.dim, eps=norm_eps)
        self.feed_forward_norm = nn.LayerNorm(attention.dim, eps=norm_eps)
        self.dropout = dropout

    @overload
    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        projection: Projection | None,
        *,
        need_weights: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        projection: Projection | None,
        *,
        need_weights: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        projection: Projection | None,
        *,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """x (B, N, M), finite at padded positions too; mask (B, N) or None.

        `need_weights` returns the attention weights (B, H, N, R) too, and computes the output from
        them.
        """
        if need_weights:
            return self._forward_with_weights(x, mask, projection)
        return in_sample_groups(
            lambda some: self._forward(x[some], None if mask is None else mask[some], projection),
            x,
            width=self.attention.width,
        )

    def _forward(self, x: Tensor, mask: Tensor | None, projection: Projection | None) -> Tensor:
        memory, source = self.attention.summarise_itself(
            self.attention_input(x), mask=mask, projection=projection
        )

        def rest(samples: slice, rows: Tensor, source_rows: Tensor) -> Tensor:
            return self._rest(rows, self.attention.attend(source_rows, memory.samples(samples)))

        return in_row_blocks(rest, x, source, width=self.attention.width)

    def _forward_with_weights(
        self, x: Tensor, mask: Tensor | None, projection: Projection | None
    ) -> tuple[Tensor, Tensor]:
        memory, source = self.attention.summarise_itself(
            self.attention_input(x), mask=mask, projection=projection, fold=False
        )
        attended, weights = self.attention.attend_with_weights(source, memory, mask=mask)
        return self._rest(x, attended), weights

    def _rest(self, rows: Tensor, attended: Tensor) -> Tensor:
        """Everything after the attention, which treats each row on its own."""
        rows = rows + dropout(attended, self.dropout, self.training)
        if self.norm == "pre":
            fed = self.feed_forward(self.feed_forward_norm(rows))
            return rows + dropout(fed, self.dropout, self.training)
        rows = self.attention_norm(rows)
        fed = self.feed_forward(rows)
        return self.feed_forward_norm(rows + dropout(fed, self.dropout, self.training))

    def attention_input(self, x: Tensor) -> Tensor:
        """What the attention of this layer looks at."""
        return self.attention_norm(x) if self.norm == "pre" else x


class EncoderTrace(NamedTuple):
    """An encoder's output with all that led to it."""

    output: Tensor  # (B, N, M)
    hidden_states: tuple[Tensor, ...]  # the input of each layer, then the output: (B, N, M) each
    attentions: tuple[Tensor, ...]  # (B, H, N, R) for each layer


@explain_unknown_names
class LinformerEncoder(nn.Module):
    """A stack of Linformer layers: (B, N, dim) -> (B, N, dim) in time and memory O(n k).

    Args:
        dim, num_heads, max_length, projection, sharing, head_dim, num_kv_heads, dropout_kind,
            keep_scale, plan: as in `LinformerAttention`. With sharing='layerwise' one projection,
            `encoder.projection`, serves every layer.
        depth: the number of layers.
        k: the number of shortened rows; a sequence gives each layer its own (the paper: smaller
            in higher layers). With layerwise sharing the matrix has max(k) rows and a layer uses
            the first k of them; conv, whose filter has one width, then needs one k.
        ff_dim: the hidden size of the feed-forward part, by default 4 * dim.
        bias: whether the linear maps have one; `qkv_bias` says it of W_q, W_k and W_v alone.
        norm: `pre` (with a final norm) or `post`.
        activation: gelu, relu or swiglu.
        positions: `none`, `learned` (up to max_length) or `sinusoidal`, added to the input.
        neighbours: over how many rows, an odd number, a convolution adds to each row of the input
            what stands beside it; 0, the paper's, has none. See `core/neighbours.py`.
        dropout: on the input after positions and neighbours and on the output of every branch.
        attention_dropout: on the attention, by default the same as `dropout`.
        activation_dropout: on the hidden layer of the feed-forward part.
        gradient_checkpointing: in training keep only the input of each layer and compute the rest
            again in the backward pass: less memory, about a third more time. May be set later.
            Transforms of torch.func do not support it; inside them everything is kept.

    mask (B, N) is True at real positions. What stands elsewhere never reaches an output or a
    gradient, and rows of the output there are zero.

    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        num_heads: int,
        max_length: int | None = None,
        k: int | Sequence[int] | None = None,
        ff_dim: int | None = None,
        projection: ProjectionKind = "linear",
        sharing: Sharing = "layerwise",
        norm: Norm = "pre",
        activation: Activation = "gelu",
        positions: Positions = "none",
        neighbours: int = 0,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        activation_dropout: float = 0.0,
        dropout_kind: DropoutKind = "rows",
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        norm_eps: float = 1e-5,
        keep_scale: bool = True,
        plan: Plan | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        checks.positive("depth", depth)
        checks.one_of("norm", norm, get_args(Norm))
        checks.probability("dropout", dropout)
        k_of_layer = _k_of_each_layer(k, depth)
        for layer_k in k_of_layer:
            check_projection(projection, sharing, layer_k, max_length)
        _check_shared_k(projection, sharing, k_of_layer)
        self.dim = dim
        self.dropout = dropout
        self.gradient_checkpointing = gradient_checkpointing
        shared = sharing == "layerwise" and projection != "full"
        self.layers = nn.ModuleList(
            EncoderLayer(
                LinformerAttention(
                    dim=dim,
                    num_heads=num_heads,
                    max_length=max_length,
                    k=layer_k,
                    projection=projection,
                    sharing=sharing,
                    head_dim=head_dim,
                    num_kv_heads=num_kv_heads,
                    bias=bias if qkv_bias is None else qkv_bias,
                    out_bias=bias,
                    dropout=dropout if attention_dropout is None else attention_dropout,
                    dropout_kind=dropout_kind,
                    keep_scale=keep_scale,
                    plan=plan,
                    external_projection=shared,
                ),
                FeedForward(
                    dim=dim,
                    ff_dim=4 * dim if ff_dim is None else ff_dim,
                    activation=activation,
                    dropout=activation_dropout,
                    bias=bias,
                ),
                norm=norm,
                norm_eps=norm_eps,
                dropout=dropout,
            )
            for layer_k in k_of_layer
        )
        self.projection: Projection | None = None
        if shared:
            self.projection = build_projection(
                projection,
                k=max(layer_k for layer_k in k_of_layer if layer_k is not None),
                max_length=max_length,
                sharing=sharing,
                num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
                dim=dim,
                keep_scale=keep_scale,
            )
        self.positions = build_positions(positions, max_length, dim)
        self.neighbours = build_neighbours(neighbours, dim)
        self.final_norm = nn.LayerNorm(dim, eps=norm_eps) if norm == "pre" else None

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """x (B, N, dim) -> (B, N, dim); mask (B, N) bool, True = a real position."""
        x = self._enter(x, mask)
        for layer in self.layers:
            x = self._through(layer, x, mask)
        return self._leave(x, mask)

    def trace(
        self, x: Tensor, *, mask: Tensor | None = None, attentions: bool = True
    ) -> EncoderTrace:
        """As forward, keeping every layer's input and its attention weights (B, H, N, R).

        The output is computed from the weights that are returned, so they have a gradient
        (`retain_grad`); it equals that of forward to rounding. `attentions=False` leaves the
        weights out, which cost as much as they are large.
        """
        x = self._enter(x, mask)
        hidden_states, weights = [], []
        for layer in self.layers:
            hidden_states.append(x)
            if attentions:
                x, seen = self._through(layer, x, mask, need_weights=True)
                weights.append(seen)
            else:
                x = self._through(layer, x, mask)
        output = self._leave(x, mask)
        return EncoderTrace(output, (*hidden_states, output), tuple(weights))

    def shape(self, *, batch: int, length: int) -> EncoderShape:
        """The sizes of one call, for `cost.py`."""
        first = self.layers[0]
        assert isinstance(first, EncoderLayer)
        return EncoderShape(
            layers=tuple(
                layer.attention.shape(batch=batch, length=length)
                for layer in self.layers
                if isinstance(layer, EncoderLayer)
            ),
            ff_dim=first.feed_forward.w_2.in_features,
            activation=first.feed_forward.activation,
            pre_norm=first.norm == "pre",
            learned_positions=isinstance(self.positions, LearnedPositions),
            neighbours=0 if self.neighbours is None else self.neighbours.weight.shape[1],
        )

    def _through(self, layer: nn.Module, x: Tensor, mask: Tensor | None, **options: Any) -> Any:
        if self.gradient_checkpointing and self.training and not under_transform():
            return checkpoint(layer, x, mask, self.projection, use_reentrant=False, **options)
        return layer(x, mask, self.projection, **options)

    def _enter(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Check the input, add positions, take out what stands in the padding, add neighbours."""
        checks.sequence("x", x, self.dim)
        if mask is not None:
            checks.padding_mask("mask", mask, x)
        if self.positions is not None:
            x = self.positions(x)
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0.0)
        if self.neighbours is not None:
            x = self.neighbours(x)
        return dropout(x, self.dropout, self.training)

    def _leave(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if self.final_norm is not None:
            x = self.final_norm(x)
        return x if mask is None else x.masked_fill(~mask[..., None], 0.0)


def _k_of_each_layer(k: int | Sequence[int] | None, depth: int) -> list[int | None]:
    if k is None or isinstance(k, int):
        return [k] * depth
    if len(k) != depth:
        raise ValueError(
            f"k must be one number or one for each of the {depth} layers: got {len(k)}, {list(k)}."
        )
    return list(k)


def _check_shared_k(projection: str, sharing: str, k_of_layer: list[int | None]) -> None:
    if projection == "conv" and sharing == "layerwise" and len(set(k_of_layer)) > 1:
        raise ValueError(
            f"one conv filter has one width, so layerwise sharing needs one k: got {k_of_layer}. "
            "Use sharing='kv', or the same k in every layer."
        )
