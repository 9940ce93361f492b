"""The Linformer decoder: causal, linear time in training, constant memory in generation.

Legend: B batch, N tokens, S context positions, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, overload

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from . import checks
from .attention import LinformerAttention
from .causal import CausalLinformerAttention, SlotState
from .cpu.predicate import eager_on_cpu, under_transform
from .decoder_layer import DecoderLayer, SelfAttention
from .dropout import dropout
from .encoder import Norm
from .feedforward import FeedForward
from .full_causal import CausalFullAttention
from .heads import HeadOptions, reset_children
from .names import explain_unknown_names
from .projection_kinds import ProjectionKind, Sharing, build_projection
from .state import DecoderState
from .unpadding import Unpadding

if TYPE_CHECKING:
    from collections.abc import Callable

    from .activations import Activation
    from .compressed_kv import ContextKV
    from .projection import Projection

CausalKind = Literal["slots", "full"]


class DecoderTrace(NamedTuple):
    """The output of a decoder with its hidden states and attention weights."""

    output: Tensor  # (B, N, M)
    hidden_states: tuple[Tensor, ...]  # the input of each layer, then the output: (B, N, M) each
    attentions: tuple[Tensor, ...]  # (B, H, N, K + 2W) for each layer, (B, H, N, N) of `full`
    cross_attentions: tuple[Tensor, ...]  # (B, H, N, R) for each layer; none without a context
    state: DecoderState | None  # the state after x, if one was given


@explain_unknown_names
class LinformerDecoder(nn.Module):
    """A stack of causal Linformer layers, for language models and sequence to sequence.

    Args:
        dim, depth, num_heads, ff_dim, norm, activation, dropout, attention_dropout,
            activation_dropout, head_dim, num_kv_heads, bias, qkv_bias, norm_eps,
            gradient_checkpointing: as in `LinformerEncoder`.
        attention: `slots` (see `CausalLinformerAttention`), or `full`, ordinary causal attention
            with a growing cache.
        k, window, rotary: options of `slots`; `rotary` also of `full`.
        cross_attention: whether layers attend to a context, compressed once to `context_k` rows.
        context_projection, context_k, context_max_length, context_sharing, context_dim: the
            projection of the context, as in `LinformerAttention`; context_k is by default k.

    mask (B, N) is True at real tokens. Padding may be anywhere; it does not affect the output.

    A NaN or infinity in x makes the output of that call NaN from that token on; outputs before it
    do not change.

    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        num_heads: int,
        k: int = 64,
        window: int = 128,
        ff_dim: int | None = None,
        attention: CausalKind = "slots",
        rotary: float = 0.5,
        cross_attention: bool = False,
        context_projection: ProjectionKind = "dynamic",
        context_k: int | None = None,
        context_max_length: int | None = None,
        context_sharing: Sharing = "kv",
        context_dim: int | None = None,
        norm: Norm = "pre",
        activation: Activation = "gelu",
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        activation_dropout: float = 0.0,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        norm_eps: float = 1e-5,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        checks.positive("depth", depth)
        checks.one_of("norm", norm, get_args(Norm))
        checks.one_of("attention", attention, get_args(CausalKind))
        checks.probability("dropout", dropout)
        self.dim = dim
        self.dropout = dropout
        self.gradient_checkpointing = gradient_checkpointing
        self.context_projection: Projection | None = None
        if context_k is None:
            context_k = k
        if cross_attention and context_projection != "full":
            checks.positive("context_k (by default k)", context_k)
        shared = cross_attention and context_sharing == "layerwise" and context_projection != "full"
        heads = HeadOptions(
            dim=dim,
            num_heads=num_heads,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            bias=bias if qkv_bias is None else qkv_bias,
            out_bias=bias,
            dropout=dropout if attention_dropout is None else attention_dropout,
        )

        def self_attention() -> SelfAttention:
            if attention == "full":
                return CausalFullAttention(**heads, rotary=rotary)
            return CausalLinformerAttention(**heads, rotary=rotary, k=k, window=window)

        def context_attention() -> LinformerAttention | None:
            if not cross_attention:
                return None
            return LinformerAttention(
                **heads,
                max_length=context_max_length,
                k=context_k,
                projection=context_projection,
                sharing=context_sharing,
                context_dim=context_dim,
                external_projection=shared,
            )

        self.layers = nn.ModuleList(
            DecoderLayer(
                self_attention(),
                FeedForward(
                    dim=dim,
                    ff_dim=4 * dim if ff_dim is None else ff_dim,
                    activation=activation,
                    dropout=activation_dropout,
                    bias=bias,
                ),
                cross_attention=context_attention(),
                norm=norm,
                norm_eps=norm_eps,
                dropout=dropout,
            )
            for _ in range(depth)
        )
        if shared:
            self.context_projection = build_projection(
                context_projection,
                k=context_k,
                max_length=context_max_length,
                sharing=context_sharing,
                num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
                dim=dim if context_dim is None else context_dim,
            )
        self.final_norm = nn.LayerNorm(dim, eps=norm_eps) if norm == "pre" else None

    @overload
    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        state: None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, state: DecoderState
    ) -> tuple[Tensor, DecoderState]: ...

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        state: DecoderState | None = None,
    ) -> Tensor | tuple[Tensor, DecoderState]:
        """x (B, N, dim) -> (B, N, dim), all positions at once.

        With a state x continues its sequence, and the new state is returned too; the context is
        then that of the state. Output rows at padded positions are zero.
        """
        checks.sequence("x", x, self.dim)
        unpadding = None
        if mask is not None:
            checks.padding_mask("mask", mask, x)
            unpadding = Unpadding.of(mask)
            x = unpadding.unpad(x)
        x, invalid = _without_nan(x)
        if state is not None:
            if context is not None or context_mask is not None:
                raise ValueError(
                    "the context is part of the state: got both. Pass it to init_state instead."
                )
            return self._continue(x, unpadding, invalid, state)
        context_kv = self._compress_context(
            context, context_mask, batch=x.shape[0], queries=x.shape[1]
        )
        x = dropout(x, self.dropout, self.training)
        for layer, kv in zip(self.layers, context_kv, strict=True):
            x = self._run(layer, x, kv)
        return self._finish(x, unpadding, invalid)

    def init_state(
        self,
        batch_size: int,
        *,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> DecoderState:
        """The state before the first token. The context is compressed here, once."""
        checks.positive("batch_size", batch_size)
        weight = next(self.parameters())
        context_kv = self._compress_context(context, context_mask, batch=batch_size, queries=1)
        return DecoderState(
            position=torch.zeros(batch_size, dtype=torch.int64, device=weight.device),
            layers=tuple(
                layer.attention.init_state(batch_size, device=weight.device, dtype=weight.dtype)
                for layer in self._each_layer()
            ),
            memories=tuple(kv for kv in context_kv if kv is not None),
        )

    def step(self, x: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """One token: x (B, 1, dim) -> (B, 1, dim) and the state after it."""
        checks.sequence("x", x, self.dim)
        self._check_state(x, state)
        if x.shape[1] != 1:
            raise ValueError(
                f"step takes one token: got {x.shape[1]}. Pass more to forward, with state=."
            )
        x = dropout(x, self.dropout, self.training)
        states = []
        context_kv = self._context_of(state)
        for layer, past, kv in zip(self._each_layer(), state.layers, context_kv, strict=True):
            x, new = layer.step(x, past, state.position, kv)
            states.append(new)
        after = DecoderState(state.position + 1, tuple(states), state.memories)
        return self._finish(x, None, None), after

    def trace(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        state: DecoderState | None = None,
        attentions: bool = True,
    ) -> DecoderTrace:
        """As forward, with every layer's input and its attention weights.

        With `slots` the weights of a token are those to the slots, to the previous chunk and to its
        own chunk; chunks are counted in tokens, without padding. They exist for a whole sequence
        only: with a state pass attentions=False. The output is computed from the returned weights,
        so they have a gradient (`retain_grad`); it equals that of forward up to rounding.
        """
        checks.sequence("x", x, self.dim)
        if state is not None and attentions:
            raise ValueError(
                "attention weights exist for a whole sequence, not for one that continues a state. "
                "Pass attentions=False, or the whole sequence without a state."
            )
        unpadding = None
        if mask is not None:
            checks.padding_mask("mask", mask, x)
            unpadding = Unpadding.of(mask)
            x = unpadding.unpad(x)
        x, invalid = _without_nan(x)
        hidden: list[Tensor] = []
        if state is not None:
            output, state = self._continue(x, unpadding, invalid, state, hidden)
            return DecoderTrace(output, (*hidden, output), (), (), state)
        context_kv = self._compress_context(
            context, context_mask, batch=x.shape[0], queries=x.shape[1], fold=not attentions
        )
        x = dropout(x, self.dropout, self.training)
        weights: list[Tensor] = []
        crossing: list[Tensor] = []
        for layer, kv in zip(self.layers, context_kv, strict=True):
            x = _record(hidden, x, unpadding)
            if not attentions:
                x = self._run(layer, x, kv)
                continue
            x, seen, crossed = self._run(layer, x, kv, unpadding, need_weights=True)
            weights.append(seen)
            if crossed is not None:
                crossing.append(crossed)
        output = self._finish(x, unpadding, invalid)
        return DecoderTrace(output, (*hidden, output), tuple(weights), tuple(crossing), None)

    reset_parameters = reset_children

    def _run(self, part: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """part(*arguments, **options), checkpointed if that is asked for."""
        if self.gradient_checkpointing and self.training and not under_transform():
            return checkpoint(part, *arguments, use_reentrant=False, **options)
        return part(*arguments, **options)

    def _continue(
        self,
        x: Tensor,
        unpadding: Unpadding | None,
        invalid: Tensor | None,
        state: DecoderState,
        hidden: list[Tensor] | None = None,
    ) -> tuple[Tensor, DecoderState]:
        self._check_state(x, state)
        length = (
            torch.full_like(state.position, x.shape[1]) if unpadding is None else unpadding.length
        )
        x = dropout(x, self.dropout, self.training)
        states = []
        context_kv = self._context_of(state)
        for layer, past, kv in zip(self._each_layer(), state.layers, context_kv, strict=True):
            if hidden is not None:
                x = _record(hidden, x, unpadding)
            x, new = self._run(layer.extend, x, length, past, state.position, kv)
            states.append(new)
        after = DecoderState(state.position + length, tuple(states), state.memories)
        if invalid is not None:
            after = after.with_nan(invalid[:, -1])
        return self._finish(x, unpadding, invalid), after

    def _compress_context(
        self,
        context: Tensor | None,
        context_mask: Tensor | None,
        batch: int,
        queries: int,
        *,
        fold: bool = True,
    ) -> list[ContextKV | None]:
        """The compressed context of each layer; None for each without cross-attention."""
        crossing = [layer.cross_attention for layer in self._each_layer()]
        if crossing[0] is None:
            if context is not None or context_mask is not None:
                raise ValueError(
                    "this decoder has no cross-attention: got a context. Build it with "
                    "cross_attention=True."
                )
            return [None] * len(crossing)
        if context is None:
            raise ValueError("a decoder with cross_attention=True needs a context: got None.")
        if context.shape[0] != batch:
            raise ValueError(
                f"the context must have the batch size of x: got {context.shape[0]} and "
                f"{batch}. Repeat the smaller one."
            )
        return [
            cross.compress(
                context,
                mask=context_mask,
                projection=self.context_projection,
                queries=queries,
                fold=fold,
            )
            for cross in crossing
            if cross is not None
        ]

    def _context_of(self, state: DecoderState) -> list[ContextKV | None]:
        return list(state.memories) if state.memories else [None] * len(self.layers)

    def _check_state(self, x: Tensor, state: DecoderState) -> None:
        if state.position.shape[0] != x.shape[0] or len(state.layers) != len(self.layers):
            raise ValueError(
                f"the state is for {state.position.shape[0]} samples and {len(state.layers)} "
                f"layers: got {x.shape[0]} samples in a decoder of {len(self.layers)} layers. "
                "Make it with init_state of this decoder, or reorder it."
            )
        first = self._each_layer()[0]
        crossing = first.cross_attention is not None
        of_this_kind = isinstance(state.layers[0], SlotState) == isinstance(
            first.attention, CausalLinformerAttention
        )
        if bool(state.memories) != crossing or not of_this_kind:
            raise ValueError(
                "the state belongs to another kind of decoder (its attention, or whether it has a "
                "context): make it with init_state of this one."
            )

    def _finish(self, x: Tensor, unpadding: Unpadding | None, invalid: Tensor | None) -> Tensor:
        if self.final_norm is not None:
            x = self.final_norm(x)
        if invalid is not None:
            x = x.masked_fill(invalid[..., None], float("nan"))
        return _padded(x, unpadding)

    def _each_layer(self) -> list[DecoderLayer]:
        return [layer for layer in self.layers if isinstance(layer, DecoderLayer)]


def _record(hidden: list[Tensor], x: Tensor, unpadding: Unpadding | None) -> Tensor:
    """Append x with padding, and return what the layers continue with, computed from that."""
    hidden.append(_padded(x, unpadding))
    return hidden[-1] if unpadding is None else unpadding.unpad(hidden[-1])


def _padded(x: Tensor, unpadding: Unpadding | None) -> Tensor:
    return x if unpadding is None else unpadding.pad(x)


def _without_nan(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """x (B, N, M) with zeros from the first NaN or infinity on, and a mask (B, N) of these rows.

    The kernel gives a hidden token the weight 0, and 0 * NaN is NaN, so one invalid token would
    affect earlier tokens of its chunk.
    """
    invalid = ~x.isfinite().all(-1)
    if eager_on_cpu(x) and not invalid.any():
        return x, None
    invalid = invalid.cumsum(1) > 0
    return x.masked_fill(invalid[..., None], 0.0), invalid
