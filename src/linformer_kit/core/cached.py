"""Causal full attention with an ordinary cache: what the causal Linformer is compared with.

The same interface as `CausalLinformerAttention`, and the same rotary positions. Its state grows by
one row a token.

Legend: B batch, N tokens, T tokens in the cache, H heads, G key/value heads, D head size, M model
size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .attend import join_heads
from .dropout import drop_rows
from .fastpath import under_transform
from .heads import RotaryHeads
from .weights import attention_weights, for_each_head

if TYPE_CHECKING:
    from .cost import CausalShape
    from .packing import Packing


QUERIES = 1024  # of a long prompt at a time: a mask of all at once would be its length squared


class CacheState(NamedTuple):
    """All keys and values so far. Position p of a sample stands in row p."""

    key: Tensor  # (B, T, G, D), rotated
    value: Tensor  # (B, T, G, D)


class CausalFullAttention(RotaryHeads):
    """Every token attends to every token up to itself. Arguments as in the causal Linformer's."""

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        rotary: float = 0.5,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            dim=dim,
            num_heads=num_heads,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            bias=bias,
            out_bias=out_bias,
            rotary=rotary,
            dropout=dropout,
        )
        self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """The whole of a text at once: x (B, N, M) -> (B, N, M)."""
        position = torch.arange(x.shape[1], device=x.device)[None]
        query, key, _, value = self.rotated_heads(x, position)
        mixed = self.attend(query, key, value, causal=True)
        return self.out_proj(mixed.flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        """The attention weights (B, H, N, N) of a whole text x (B, N, M)."""
        return self._weights(x)[0]

    def trace(self, x: Tensor, *, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
        """As forward, and the weights (B, H, N, N) the output is computed from.

        Where x is packed, the weights are unpacked by `packing`.
        """
        weights, value = self._weights(x)
        shown = used = weights
        if packing is not None:
            shown = packing.unpack_weights(weights, columns=True)
            used = packing.pack_weights(shown, columns=True)
        value = drop_rows(value, self.dropout, self.training).transpose(1, 2)
        mixed = used @ for_each_head(value, self.num_heads)  # (B, H, N, D)
        return self.out_proj(join_heads(mixed)), shown

    def _weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (B, H, N, N) and the values (B, N, G, D)."""
        place = torch.arange(x.shape[1], device=x.device)
        query, key, _, value = self.rotated_heads(x, place[None])
        visible = place[:, None] >= place
        return attention_weights(query.transpose(1, 2), key.transpose(1, 2), visible), value

    def init_state(
        self, batch_size: int, *, device: torch.device, dtype: torch.dtype
    ) -> CacheState:
        empty = torch.zeros(
            batch_size, 0, self.num_kv_heads, self.head_dim, device=device, dtype=dtype
        )
        return CacheState(key=empty, value=empty)

    def step(self, x: Tensor, state: CacheState, position: Tensor) -> tuple[Tensor, CacheState]:
        """One token: x (B, 1, M) at position (B) -> (B, 1, M) and the state after it."""
        return self.extend(x, torch.ones_like(position), state, position)

    def extend(
        self, x: Tensor, length: Tensor, state: CacheState, position: Tensor
    ) -> tuple[Tensor, CacheState]:
        """Many tokens after a state: x (B, N, M), of which sample b has the first length[b].

        What a shorter sample writes behind its end is written over when its next tokens come, and
        not visible until then.
        """
        count = x.shape[1]
        place = position[:, None] + torch.arange(count, device=x.device)  # (B, N)
        query, key, _, value = self.rotated_heads(x, place)
        index = place[:, :, None, None].expand_as(key)
        longer = (0, 0, 0, 0, 0, count)
        all_keys = F.pad(state.key, longer).scatter(1, index, key.to(state.key.dtype))
        all_values = F.pad(state.value, longer).scatter(1, index, value.to(state.value.dtype))
        if not torch.compiler.is_compiling() and not under_transform():
            # No row that no sample has reached.
            rows = int((position + length).max())
            all_keys, all_values = all_keys[:, :rows], all_values[:, :rows]
        row = torch.arange(all_keys.shape[1], device=x.device)

        def attend(some: Tensor, where: Tensor) -> Tensor:
            mask = (row <= where[..., None])[:, None]  # (B, 1, N, T)
            return self.attend(some, all_keys, all_values, mask=mask)

        if torch.compiler.is_compiling() or torch.is_grad_enabled() or count <= QUERIES:
            mixed = attend(query, place)
        else:
            parts = zip(query.split(QUERIES, 1), place.split(QUERIES, 1), strict=True)
            mixed = torch.cat([attend(*part) for part in parts], dim=1)
        return self.out_proj(mixed.flatten(2)), CacheState(all_keys, all_values)

    def shape(self, *, batch: int, length: int) -> CausalShape:
        """The sizes of one call, for `cost.py`."""
        return self._shape(batch=batch, length=length, k=None)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}"
