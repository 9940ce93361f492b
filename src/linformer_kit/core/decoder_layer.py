"""One layer of the decoder: for a whole sequence, for its continuation, and for one token.

Legend: B batch, N tokens, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .causal import CausalLinformerAttention
from .cpu.blocks import map_row_blocks, map_sample_groups
from .dropout import dropout
from .full_causal import CausalFullAttention
from .heads import reset_children

if TYPE_CHECKING:
    from .attention import LinformerAttention
    from .compressed_kv import ContextKV
    from .encoder import Norm
    from .feedforward import FeedForward
    from .state import LayerState
    from .unpadding import Unpadding

SelfAttention = CausalLinformerAttention | CausalFullAttention


class DecoderLayer(nn.Module):
    """Causal attention, cross-attention if there is a context, feed-forward.

    Each has its norm and its residual: before the branch (pre) or after the sum (post).
    """

    def __init__(
        self,
        attention: SelfAttention,
        feed_forward: FeedForward,
        *,
        cross_attention: LinformerAttention | None,
        norm: Norm,
        norm_eps: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.norm: Norm = norm
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(attention.dim, eps=norm_eps)
        self.cross_attention_norm = (
            None if cross_attention is None else nn.LayerNorm(attention.dim, eps=norm_eps)
        )
        self.feed_forward_norm = nn.LayerNorm(attention.dim, eps=norm_eps)

    def forward(
        self,
        x: Tensor,
        kv: ContextKV | None,
        unpadding: Unpadding | None = None,
        *,
        need_weights: bool = False,
    ) -> Any:
        """x (B, N, M), a whole sequence without padding.

        `need_weights` also returns the weights of the self-attention and of the cross-attention,
        padded by `unpadding`; the output is computed from them. `kv` must not be folded.
        """
        if need_weights:
            return self._forward_with_weights(x, kv, unpadding)

        def forward(samples: slice) -> Tensor:
            some = x[samples]
            seen = None if kv is None else kv.samples(samples)
            return self._after_attention(some, self.attention(self._source(some)), seen)

        return map_sample_groups(forward, x, width=self.attention.dim, training=self.training)

    def _forward_with_weights(
        self, x: Tensor, kv: ContextKV | None, unpadding: Unpadding | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        attended, weights = self.attention.trace(self._source(x), unpadding=unpadding)
        x = self._add_branch(x, attended, self.attention_norm)
        cross, cross_norm, crossing = self.cross_attention, self.cross_attention_norm, None
        if cross is not None and cross_norm is not None and kv is not None:
            attended, crossing = cross.attend_with_weights(
                self._cross_source(x), kv, unpadding=unpadding
            )
            x = self._add_branch(x, attended, cross_norm)
        return self._feed_forward(x), weights, crossing

    reset_parameters = reset_children

    def extend(
        self,
        x: Tensor,
        length: Tensor,
        state: LayerState,
        position: Tensor,
        kv: ContextKV | None,
    ) -> tuple[Tensor, LayerState]:
        source = self._source(x)
        # The state is one that this attention made.
        attended, state = self.attention.extend(source, length, state, position)  # type: ignore[arg-type]
        return self._after_attention(x, attended, kv), state

    def step(
        self, x: Tensor, state: LayerState, position: Tensor, kv: ContextKV | None
    ) -> tuple[Tensor, LayerState]:
        attended, state = self.attention.step(self._source(x), state, position)  # type: ignore[arg-type]
        return self._after_attention(x, attended, kv), state

    def _source(self, x: Tensor) -> Tensor:
        return self.attention_norm(x) if self.norm == "pre" else x

    def _after_attention(self, x: Tensor, attended: Tensor, kv: ContextKV | None) -> Tensor:
        """Everything after the causal attention; each row is independent of the others."""

        def rest(samples: slice, rows: Tensor, attended_rows: Tensor) -> Tensor:
            rows = self._add_branch(rows, attended_rows, self.attention_norm)
            return self._after_self_attention(rows, None if kv is None else kv.samples(samples))

        return map_row_blocks(rest, x, attended, width=self.attention.dim, training=self.training)

    def _after_self_attention(self, rows: Tensor, kv: ContextKV | None) -> Tensor:
        cross, cross_norm = self.cross_attention, self.cross_attention_norm
        if cross is not None and cross_norm is not None and kv is not None:
            seen = cross.attend(self._cross_source(rows), kv)
            rows = self._add_branch(rows, seen, cross_norm)
        return self._feed_forward(rows)

    def _feed_forward(self, rows: Tensor) -> Tensor:
        source = self.feed_forward_norm(rows) if self.norm == "pre" else rows
        return self._add_branch(rows, self.feed_forward(source), self.feed_forward_norm)

    def _cross_source(self, x: Tensor) -> Tensor:
        norm = self.cross_attention_norm
        return norm(x) if norm is not None and self.norm == "pre" else x

    def _add_branch(self, x: Tensor, branch: Tensor, norm: nn.LayerNorm) -> Tensor:
        x = x + dropout(branch, self.dropout, self.training)
        return x if self.norm == "pre" else norm(x)
