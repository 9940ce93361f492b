"""One layer of the decoder, for a whole text, for more of one, and for one token.

Legend: B batch, N tokens, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, overload

from torch import Tensor, nn

from .blocks import in_row_blocks, in_sample_groups
from .cached import CausalFullAttention
from .causal import CausalLinformerAttention
from .dropout import dropout

if TYPE_CHECKING:
    from .attention import LinformerAttention
    from .encoder import Norm
    from .feedforward import FeedForward
    from .packing import Packing
    from .state import ContextMemory, LayerState

SelfAttention = CausalLinformerAttention | CausalFullAttention


class DecoderLayer(nn.Module):
    """Causal attention, attention to the context if there is one, feed-forward.

    Each has its norm and its residual: before it (pre) or after the sum (post).
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

    @overload
    def forward(
        self,
        x: Tensor,
        memory: ContextMemory | None,
        packing: Packing | None = None,
        *,
        need_weights: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        memory: ContextMemory | None,
        packing: Packing | None = None,
        *,
        need_weights: Literal[True],
    ) -> tuple[Tensor, Tensor, Tensor | None]: ...

    def forward(
        self,
        x: Tensor,
        memory: ContextMemory | None,
        packing: Packing | None = None,
        *,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor | None]:
        """x (B, N, M), a whole text, packed if it has padding.

        `need_weights` returns the weights of the attention and of the one to the context too,
        unpacked by `packing`, and computes the output from them. The memory must not be folded.
        """
        if need_weights:
            return self._forward_with_weights(x, memory, packing)

        def forward(samples: slice) -> Tensor:
            some = x[samples]
            seen = None if memory is None else memory.samples(samples)
            return self._rest(some, self.attention(self._source(some)), seen)

        return in_sample_groups(forward, x, width=self.attention.dim)

    def _forward_with_weights(
        self, x: Tensor, memory: ContextMemory | None, packing: Packing | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        attended, weights = self.attention.trace(self._source(x), packing=packing)
        x = self._added(x, attended, self.attention_norm)
        cross, cross_norm, crossing = self.cross_attention, self.cross_attention_norm, None
        if cross is not None and cross_norm is not None and memory is not None:
            attended, crossing = cross.attend_with_weights(
                self._cross_source(x), memory, packing=packing
            )
            x = self._added(x, attended, cross_norm)
        return self._fed(x), weights, crossing

    def extend(
        self,
        x: Tensor,
        length: Tensor,
        state: LayerState,
        position: Tensor,
        memory: ContextMemory | None,
    ) -> tuple[Tensor, LayerState]:
        source = self._source(x)
        # The state is one that this attention made.
        attended, state = self.attention.extend(source, length, state, position)  # type: ignore[arg-type]
        return self._rest(x, attended, memory), state

    def step(
        self, x: Tensor, state: LayerState, position: Tensor, memory: ContextMemory | None
    ) -> tuple[Tensor, LayerState]:
        attended, state = self.attention.step(self._source(x), state, position)  # type: ignore[arg-type]
        return self._rest(x, attended, memory), state

    def _source(self, x: Tensor) -> Tensor:
        return self.attention_norm(x) if self.norm == "pre" else x

    def _rest(self, x: Tensor, attended: Tensor, memory: ContextMemory | None) -> Tensor:
        """Everything after the causal attention, which treats each row on its own."""

        def rest(samples: slice, rows: Tensor, attended_rows: Tensor) -> Tensor:
            rows = self._added(rows, attended_rows, self.attention_norm)
            return self._crossed_and_fed(rows, None if memory is None else memory.samples(samples))

        return in_row_blocks(rest, x, attended, width=self.attention.dim)

    def _crossed_and_fed(self, rows: Tensor, memory: ContextMemory | None) -> Tensor:
        cross, cross_norm = self.cross_attention, self.cross_attention_norm
        if cross is not None and cross_norm is not None and memory is not None:
            seen = cross.attend(self._cross_source(rows), memory)
            rows = self._added(rows, seen, cross_norm)
        return self._fed(rows)

    def _fed(self, rows: Tensor) -> Tensor:
        source = self.feed_forward_norm(rows) if self.norm == "pre" else rows
        return self._added(rows, self.feed_forward(source), self.feed_forward_norm)

    def _cross_source(self, x: Tensor) -> Tensor:
        norm = self.cross_attention_norm
        return norm(x) if norm is not None and self.norm == "pre" else x

    def _added(self, x: Tensor, branch: Tensor, norm: nn.LayerNorm) -> Tensor:
        x = x + dropout(branch, self.dropout, self.training)
        return x if self.norm == "pre" else norm(x)
