"""The Linformer encoder: attention and feed-forward layers, in O(n k).

Legend: B batch, N positions, M model size, R compressed rows, H heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import checks, encoder_trace
from .attention import DropoutKind, LinformerAttention
from .cost import EncoderShape
from .cpu.blocks import use_row_blocks
from .cpu.encoder_layer import encoder_layer_in_blocks
from .cpu.predicate import under_transform
from .dropout import dropout
from .feedforward import FeedForward
from .heads import reset_children
from .moving_average import build_moving_average
from .names import explain_unknown_names
from .plain_sdpa import zero_padding
from .positions import Positions, build_positions
from .projection_kinds import build_projection, check_k_of_layers, largest
from .short_conv import build_short_conv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .activations import Activation
    from .plan import Plan
    from .projection import Projection
    from .projection_kinds import ProjectionKind, Sharing

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
        self.attention, self.feed_forward = attention, feed_forward
        self.norm: Norm = norm
        self.attention_norm = nn.LayerNorm(attention.dim, eps=norm_eps)
        self.feed_forward_norm = nn.LayerNorm(attention.dim, eps=norm_eps)
        self.dropout = dropout

    reset_parameters = reset_children

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        projection: Projection | None,
        *,
        need_weights: bool = False,
    ) -> Any:
        """x (B, N, M), finite everywhere -> (B, N, M), and with `need_weights` (B, H, N, R) too."""
        if need_weights:
            return encoder_trace.layer_with_weights(self, x, mask, projection)
        if use_row_blocks(x, training=self.training):
            return encoder_layer_in_blocks(self, x, mask, projection)
        source = self.attention_input(x)
        if self.attention.has_exact_keys:
            return self.after_attention(x, self.attention(source, mask=mask, projection=projection))
        kv, source = self.attention.compress_self(source, mask=mask, projection=projection)
        return self.after_attention(x, self.attention.attend(source, kv))

    def attention_input(self, x: Tensor) -> Tensor:
        return self.attention_norm(x) if self.norm == "pre" else x

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The residual and the feed-forward part; each row is independent of the others."""
        x = x + dropout(attended, self.dropout, self.training)
        if self.norm == "pre":
            fed = self.feed_forward(self.feed_forward_norm(x))
            return x + dropout(fed, self.dropout, self.training)
        x = self.attention_norm(x)
        fed = self.feed_forward(x)
        return self.feed_forward_norm(x + dropout(fed, self.dropout, self.training))


@explain_unknown_names
class LinformerEncoder(nn.Module):
    """A stack of Linformer layers: (B, N, dim) -> (B, N, dim) in time and memory O(n k).

    Args:
        dim, num_heads, max_length, projection, sharing, window, global_tokens, head_dim,
            num_kv_heads, dropout_kind, keep_scale, projection_bias, plan: as in
            `LinformerAttention`. With sharing='layerwise' all layers use one projection,
            `encoder.projection`.
        depth: the number of layers.
        k: the number of compressed rows; a sequence gives each layer its own (the paper: smaller
            in higher layers). With layerwise sharing a layer of a smaller k uses the first k rows
            of the one E. Rows of mean, max and pool are segments: such a layer has wider ones, of
            ceil(max_length / k) positions. conv, whose filter has one width, needs one k.
        ff_dim, activation: the hidden size of the feed-forward part, by default 4 * dim, and gelu,
            gelu_tanh, relu or swiglu.
        full_layers: the numbers, from 0, of layers with full attention instead of `projection`.
        bias: whether linear layers have one; `qkv_bias` overrides it for W_q, W_k and W_v.
        norm: `pre` or `post`; final_norm=False leaves out the norm after the last layer of `pre`.
        positions: `none`, `learned` (up to max_length) or `sinusoidal`, added to the input.
        neighbours: the odd width of a short convolution added to the input, 0 for none.
        moving_average: whether sums of all rows that decay with distance are added to the input.
        dropout: on the input after positions and convolution, and on the output of every branch;
            `attention_dropout` on the attention, by default the same; `activation_dropout` on the
            hidden layer of the feed-forward part.
        gradient_checkpointing: in training save only the input of each layer and recompute the rest
            in the backward pass: less memory, about a third more time; not under torch.func.

    mask (B, N) is True at real positions. Padded positions never affect an output or a gradient;
    output rows there are zero.

    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        num_heads: int,
        max_length: int | None = None,
        k: int | Sequence[int] | None = None,
        full_layers: Sequence[int] = (),
        ff_dim: int | None = None,
        projection: ProjectionKind = "linear",
        sharing: Sharing = "layerwise",
        window: int = 0,
        global_tokens: int = 0,
        norm: Norm = "pre",
        final_norm: bool = True,
        activation: Activation = "gelu",
        positions: Positions = "none",
        neighbours: int = 0,
        moving_average: bool = False,
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
        projection_bias: bool = False,
        plan: Plan | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        checks.positive("depth", depth)
        checks.one_of("norm", norm, get_args(Norm))
        checks.probability("dropout", dropout)
        k_of_layer = check_k_of_layers(k, depth, projection, sharing, max_length)
        self.dim, self.dropout, self.gradient_checkpointing = dim, dropout, gradient_checkpointing
        shared = sharing == "layerwise" and projection != "full" and any(k_of_layer)
        checks.layer_numbers("full_layers", full_layers, depth)

        def layer(number: int) -> EncoderLayer:
            full = number in full_layers
            attention = LinformerAttention(
                dim=dim,
                num_heads=num_heads,
                max_length=max_length,
                k=None if full else k_of_layer[number],
                projection="full" if full else projection,
                sharing=sharing,
                window=0 if full else window,
                global_tokens=0 if full else global_tokens,
                head_dim=head_dim,
                num_kv_heads=num_kv_heads,
                bias=bias if qkv_bias is None else qkv_bias,
                out_bias=bias,
                dropout=dropout if attention_dropout is None else attention_dropout,
                dropout_kind=dropout_kind,
                keep_scale=keep_scale,
                projection_bias=projection_bias and not full,
                plan=plan,
                external_projection=shared,
            )
            hidden = 4 * dim if ff_dim is None else ff_dim
            feed = FeedForward(
                dim=dim, ff_dim=hidden, activation=activation, dropout=activation_dropout, bias=bias
            )
            return EncoderLayer(attention, feed, norm=norm, norm_eps=norm_eps, dropout=dropout)

        self.layers = nn.ModuleList(map(layer, range(depth)))
        self.projection: Projection | None = None
        if shared:
            self.projection = build_projection(
                projection,
                k=largest(k_of_layer),
                max_length=max_length,
                sharing=sharing,
                num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
                dim=dim,
                keep_scale=keep_scale,
                bias=projection_bias,
            )
        self.positions = build_positions(positions, max_length, dim)
        self.neighbours = build_short_conv(neighbours, dim)
        self.moving_average = build_moving_average(moving_average, dim, bias=bias, eps=norm_eps)
        self.final_norm = nn.LayerNorm(dim, eps=norm_eps) if norm == "pre" and final_norm else None

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """x (B, N, dim) -> (B, N, dim); mask (B, N) bool, True = a real position."""
        x = self._embed(x, mask)
        for layer in self.layers:
            x = self._run(layer, x, mask)
        return self._finish(x, mask)

    def _embed(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Check the input, add positions, zero padding, add the convolution and the averages."""
        checks.sequence("x", x, self.dim, mask=mask)
        if self.positions is not None:
            x = self.positions(x)
        x = zero_padding(x, mask)
        if self.neighbours is not None:
            x = self.neighbours(x)
        if self.moving_average is not None:
            x = self.moving_average(x, mask)
        return dropout(x, self.dropout, self.training)

    def _run(self, layer: nn.Module, x: Tensor, mask: Tensor | None, **options: Any) -> Any:
        """One layer, checkpointed if that is asked for."""
        if self.gradient_checkpointing and self.training and not under_transform():
            return checkpoint(layer, x, mask, self.projection, use_reentrant=False, **options)
        return layer(x, mask, self.projection, **options)

    def _finish(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x if self.final_norm is None else self.final_norm(x)
        return zero_padding(x, mask)

    trace = encoder_trace.trace
    reset_parameters = reset_children

    def shape(self, *, batch: int, length: int) -> EncoderShape:
        """The sizes of one call, for `cost.py`."""
        return EncoderShape.of(self, batch=batch, length=length)
