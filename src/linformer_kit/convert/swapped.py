"""Linformer attention of queries, keys and values that another model's own code has computed.

`SwappedAttention` is attached to an attention module as its child `linformer`, and computes what
lies between the projections W_q, W_k, W_v and W_o of that module. These stay where they are, under
their own names.

Legend: B batch, N positions, R compressed rows, H heads, G key/value heads, D head size, M model
size.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import checks, window, window_dense, window_rows
from ..core.compressed_kv import CompressedKV
from ..core.projection_kinds import build_projection, check_projection
from ..core.window_rows import build_row_bias, members_of_rows

if TYPE_CHECKING:
    from ..core.projection import Projection
    from ..core.projection_kinds import ProjectionKind, Sharing

CHILD = "linformer"  # the name of a SwappedAttention in its attention module
KINDS = ("mean", "pool", "linear", "conv", "fixed")  # defined on keys; others need the input
SHARINGS = ("none", "headwise", "kv")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of one swapped attention; see `linformerize`."""

    max_length: int
    k: int
    window: int
    global_tokens: int
    projection: ProjectionKind
    sharing: Sharing

    def __post_init__(self) -> None:
        checks.one_of("projection", self.projection, KINDS)
        checks.one_of("sharing", self.sharing, SHARINGS)
        checks.positive("max_length", self.max_length)
        checks.whole("k", self.k)
        check_projection(self.projection, self.sharing, self.k, self.max_length)
        window_rows.check(self.window, self.global_tokens, kind=self.projection, k=self.k)


class SwappedAttention(nn.Module):
    """Exact attention nearby, k compressed rows far away: see `core/window.py`.

    Keys and values are compressed after W_k and W_v, and after rotary positions if there are any.
    An input of at most 2 * window positions gets full attention, which is the same.
    """

    def __init__(
        self, settings: Settings, *, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        super().__init__()
        self.settings = settings
        self.k, self.window, self.kind = settings.k, settings.window, settings.projection
        self.branch: window_rows.Branch = "both"
        self.projection: Projection | None = None
        self.row_bias = build_row_bias(settings.projection, settings.k, num_heads)
        if settings.k:
            self.projection = build_projection(
                settings.projection,
                k=settings.k,
                max_length=settings.max_length,
                sharing=settings.sharing,
                num_kv_heads=num_kv_heads,
                dim=num_kv_heads * head_dim,  # the input is the keys, which only `pool` reads
            )

    @property
    def max_length(self) -> int | None:
        """Of the projection, which `resize_max_length` changes."""
        return None if self.projection is None else self.projection.max_length

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, drop: float = 0.0
    ) -> Tensor:
        """query (B, N, H, D), key and value (B, N, G, D), mask (B, N) -> (B, N, H, D).

        mask: True = a real position. `drop`: the dropout rate of single weights.
        """
        if mask is not None:
            checks.padding_mask("mask", mask, query)
        short = not torch.compiler.is_compiling() and query.shape[1] <= 2 * self.window
        if short and self.branch == "both":  # in a graph the length may be a symbol
            return window_dense.attend_all(query, key, value, mask, drop=drop)
        return window.attend(
            query,
            key,
            value,
            self._compress(key, value, mask),
            self.row_bias,
            window=0 if self.branch == "rows" else self.window,
            global_tokens=self.settings.global_tokens,
            mask=mask,
            segment=getattr(self.projection, "width", None),
            drop=drop,
        )

    def _compress(self, key: Tensor, value: Tensor, mask: Tensor | None) -> CompressedKV | None:
        if self.projection is None or self.branch == "window":
            return None
        rows = key.flatten(2)
        mask = members_of_rows(self.kind, self.settings.global_tokens, rows, mask)
        compression = self.projection(rows, mask)
        if mask is not None:  # a bias of W_k or W_v is not zero at padding
            key, value = (each.masked_fill(~mask[..., None, None], 0.0) for each in (key, value))
        both = compression.compress_keys(key, 0), compression.compress_keys(value, 1)
        return CompressedKV(*both, compression.keep, compression.row_bias)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in asdict(self.settings).items())


class LinformerMultiheadAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with the same parameters. Self-attention is left to its child
    `linformer`; the weights are never returned.

    Attention of a query to another tensor is cross-attention, and computed as before.
    """

    linformer: SwappedAttention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As in `nn.MultiheadAttention`, without attn_mask and is_causal: a mask of pairs has no
        meaning for compressed rows. The second result is None, whatever need_weights says.
        """
        if query is not key:
            warnings.warn(
                "a swapped nn.MultiheadAttention was called with a key that is not its query: this "
                "is cross-attention, computed exactly. Name the module in keep_full to leave it "
                "as it was, or pass one tensor for both.",
                stacklevel=2,
            )
            return super().forward(
                query,
                key,
                value,
                key_padding_mask=key_padding_mask,
                need_weights=need_weights,
                attn_mask=attn_mask,
                average_attn_weights=average_attn_weights,
                is_causal=is_causal,
            )
        if attn_mask is not None or is_causal:
            raise ValueError(
                "linformerized attention takes a key_padding_mask, and no mask of pairs of "
                f"positions: got {'an attn_mask' if attn_mask is not None else 'is_causal=True'}. "
                "Leave causal and masked attention as it is: name the module in keep_full."
            )
        if query.is_nested:
            raise ValueError(
                "linformerized attention takes a padded tensor and a key_padding_mask: got a "
                "nested tensor. Call to_padded_tensor first."
            )
        batched, rows_first = query.dim() == 3, self.batch_first
        mask = None
        if key_padding_mask is not None:
            padding = key_padding_mask if batched else key_padding_mask[None]
            if padding.dtype != torch.bool and not padding.is_floating_point():
                raise ValueError(
                    "a key_padding_mask must be boolean (True = padding) or floating: got "
                    f"{padding.dtype}. Pass mask.bool()."
                )
            mask = ~padding if padding.dtype == torch.bool else visible_keys(padding)
        if not batched:
            query, value = query[None], value[None]
        elif not rows_first:
            query, value = query.transpose(0, 1), value.transpose(0, 1)
        output = self.out_proj(self._mix(query, value, mask, same=key is value))
        if not batched:
            return output[0], None
        return (output if rows_first else output.transpose(0, 1)), None

    def _mix(self, x: Tensor, value: Tensor, mask: Tensor | None, *, same: bool) -> Tensor:
        """x (B, N, M) for queries and keys, `value` for values -> (B, N, M), before W_o."""
        weight, bias, dim = self.in_proj_weight, self.in_proj_bias, self.embed_dim
        if same:
            parts = list(F.linear(x, weight, bias).split(dim, dim=2))
        else:
            first, last = (None, None) if bias is None else (bias[: 2 * dim], bias[2 * dim :])
            parts = list(F.linear(x, weight[: 2 * dim], first).split(dim, dim=2))
            parts.append(F.linear(value, weight[2 * dim :], last))
        heads = (part.unflatten(2, (self.num_heads, -1)) for part in parts)
        drop = self.dropout if self.training else 0.0
        return self.linformer(*heads, mask, drop=drop).flatten(2)


def visible_keys(mask: Tensor) -> Tensor:
    """The keys (B, N) that a mask shows to every query, True = visible.

    mask: (B, N) or (B, 1, N or 1, N), boolean with True = visible, or 0 and very low numbers that
    are added to the scores. One that treats queries differently, or that adds other numbers, is
    refused.
    """
    if mask.dim() == 4:
        row = mask[:, :1, :1]
        if not torch.compiler.is_compiling() and not bool((mask == row).all()):
            raise ValueError(
                "linformerized attention takes masks of padding only: got a mask of shape "
                f"{tuple(mask.shape)} that differs between queries or heads. Name the attention in "
                "keep_full if it is causal, local, or has position biases."
            )
        mask = row[:, 0, 0]
    if mask.dim() != 2:
        raise ValueError(
            f"a mask of padding has shape (batch, length): got {tuple(mask.shape)} ({mask.dtype})."
        )
    if not mask.is_floating_point():
        return mask.bool()
    shown = mask == 0
    if not torch.compiler.is_compiling() and not bool((shown | (mask <= -1e4)).all()):
        raise ValueError(
            "a mask of padding that is added to the scores must be 0 or very low (-inf): got other "
            "numbers. Pass a boolean mask."
        )
    return shown
