"""Full causal attention with a KV cache, the baseline of the causal Linformer.

The same interface as `CausalLinformerAttention`, and the same rotary positions. The state grows by
one row per token.

Legend: B batch, N tokens, T tokens in the cache, H heads, G key/value heads, D head size, M model
size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .cpu.linear import apply_linear
from .cpu.predicate import under_transform
from .dropout import drop_rows
from .heads import RotaryHeads
from .plain_sdpa import attention_weights, join_heads, repeat_kv

if TYPE_CHECKING:
    from .unpadding import Unpadding


QUERIES = 1024  # at a time: the mask of a whole long prompt would be its length squared


class CacheState(NamedTuple):
    """All keys and values so far. Position p of a sample is in row p."""

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
        """A whole sequence at once: x (B, N, M) -> (B, N, M)."""
        position = torch.arange(x.shape[1], device=x.device)[None]
        query, key, _, value = self.rotated_heads(x, position)
        mixed = self.attend(query, key, value, causal=True)
        return apply_linear(self.out_proj, mixed.flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        """The attention weights (B, H, N, N) of a whole sequence x (B, N, M)."""
        return self._weights(x)[0]

    def trace(self, x: Tensor, *, unpadding: Unpadding | None = None) -> tuple[Tensor, Tensor]:
        """As forward, and the weights (B, H, N, N) that the output is computed from.

        If padding was removed from x, `unpadding` puts it back into the weights.
        """
        weights, value = self._weights(x)
        shown = used = weights
        if unpadding is not None:
            shown = unpadding.pad_weights(weights, columns=True)
            used = unpadding.unpad_weights(shown, columns=True)
        value = drop_rows(value, self.dropout, self.training).transpose(1, 2)
        mixed = used @ repeat_kv(value, self.num_heads)  # (B, H, N, D)
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
        """Several tokens after a state: x (B, N, M), of which sample b has the first length[b].

        Rows after the end of a shorter sample are masked until its next tokens overwrite them.
        """
        count = x.shape[1]
        place = position[:, None] + torch.arange(count, device=x.device)  # (B, N)
        query, key, _, value = self.rotated_heads(x, place)
        index = place[:, :, None, None].expand_as(key)
        longer = (0, 0, 0, 0, 0, count)
        all_keys = F.pad(state.key, longer).scatter(1, index, key.to(state.key.dtype))
        all_values = F.pad(state.value, longer).scatter(1, index, value.to(state.value.dtype))
        if not torch.compiler.is_compiling() and not under_transform():
            # Remove rows that no sample has reached.
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
        return apply_linear(self.out_proj, mixed.flatten(2)), CacheState(all_keys, all_values)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}"
