"""What queries attend to: compressed keys and values, plain or folded with W_q and W_o.

Folded, with K_h, V_h the compressed keys and values of head h:

    A_h = W_q,h K_h^T / sqrt(D)  (M x R),   B_h = V_h W_o,h  (R x M),
    y = sum_h softmax(x A_h) B_h

This is cheaper than heads of size D where H * R is well below M; `plan.py` decides.

Legend: B batch, N queries, R compressed rows, H heads, G key/value heads, D head size, M model
size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .dropout import dropout
from .numerics import per_head_matmul
from .plain_sdpa import repeat_kv

if TYPE_CHECKING:
    from torch import nn


class CompressedKV(NamedTuple):
    """The keys and values of a context, compressed to R rows."""

    key: Tensor  # (B, H or G, R, D)
    value: Tensor  # (B, H or G, R, D)
    keep: Tensor | None  # (B, R), False at rows made of padding alone; None: all rows are real
    bias: Tensor | None = None  # (B, G or 1, R), of the scores beside exact keys only

    @property
    def mask(self) -> Tensor | None:
        """`keep` for scores (B, H, N, R)."""
        return None if self.keep is None else self.keep[:, None, None]

    def expand_batch(self, batch: int) -> CompressedKV:
        """The same for each of `batch` samples, if it is made from one."""
        if _has_batch(self.key, batch):
            return self
        keep = None if self.keep is None else self.keep.expand(batch, -1)
        return CompressedKV(
            self.key.expand(batch, -1, -1, -1), self.value.expand(batch, -1, -1, -1), keep
        )

    def samples(self, which: slice) -> CompressedKV:
        keep = None if self.keep is None else self.keep[which]
        return CompressedKV(self.key[which], self.value[which], keep)


class FoldedKV(NamedTuple):
    """Compressed keys and values with W_q and W_o multiplied in: y = softmax(x A + c) B."""

    score: Tensor  # A^T (B, H*R, M)
    offset: Tensor | None  # c (B, 1, H*R), from the query bias and from `keep`
    output: Tensor  # B (B, H*R, M)

    def expand_batch(self, batch: int) -> FoldedKV:
        """The same for each of `batch` samples, if it is made from one."""
        if _has_batch(self.score, batch):
            return self
        offset = None if self.offset is None else self.offset.expand(batch, -1, -1)
        return FoldedKV(self.score.expand(batch, -1, -1), offset, self.output.expand(batch, -1, -1))

    def samples(self, which: slice) -> FoldedKV:
        offset = None if self.offset is None else self.offset[which]
        return FoldedKV(self.score[which], offset, self.output[which])

    def scores(self, x: Tensor) -> Tensor:
        """x A + c for x (B, N, M): (B, N, H*R)."""
        if self.offset is None:
            return torch.matmul(x, self.score.mT)
        return torch.baddbmm(self.offset, x, self.score.mT)

    def weights(self, x: Tensor, heads: int) -> Tensor:
        """The attention weights of x (B, N, M): (B, N, H, R)."""
        return self.scores(x).unflatten(2, (heads, -1)).softmax(-1)

    def mix(self, weights: Tensor) -> Tensor:
        """weights (B, N, H, R) -> the output (B, N, M)."""
        return torch.matmul(weights.flatten(2), self.output)

    def with_bias(self, bias: Tensor | None, *, heads: int) -> FoldedKV:
        """`bias` (M) added to every output: to the rows of one head, whose weights sum to one."""
        if bias is None:
            return self
        first, others = self.output.tensor_split([self.output.shape[1] // heads], dim=1)
        return self._replace(output=torch.cat([first + bias, others], dim=1))

    def attend(self, x: Tensor, bias: Tensor | None, *, heads: int, drop: float = 0.0) -> Tensor:
        """softmax(x A + c) B + bias: x (B, N, M) -> (B, N, M). `drop`: the rate for weights."""
        weights = self.weights(x, heads)
        if not drop:
            return self.with_bias(bias, heads=heads).mix(weights)
        y = self.mix(dropout(weights, drop, training=True))
        return y if bias is None else y + bias


ContextKV = CompressedKV | FoldedKV


def _has_batch(rows: Tensor, batch: int) -> bool:
    """Whether there are `batch` samples; a single one is for any number of samples."""
    if torch.compiler.is_compiling():
        return True  # sizes may be symbols, and operations broadcast
    if rows.shape[0] not in (1, batch):
        raise ValueError(
            "compressed keys and values must be of one sample, or of as many as attend to them: "
            f"got {rows.shape[0]} and {batch}."
        )
    return rows.shape[0] == batch


def fold(kv: CompressedKV, q_proj: nn.Linear, out_proj: nn.Linear, *, num_heads: int) -> FoldedKV:
    """Multiply W_q into the keys and W_o into the values."""
    key, value = repeat_kv(kv.key, num_heads), repeat_kv(kv.value, num_heads)
    key = key * key.shape[-1] ** -0.5
    w_q = q_proj.weight.unflatten(0, (num_heads, -1))  # (H, D, M)
    w_o = out_proj.weight.t().unflatten(0, (num_heads, -1))  # (H, D, M)
    score = per_head_matmul(key, w_q).flatten(1, 2)  # (B, H*R, M)
    output = per_head_matmul(value, w_o).flatten(1, 2)  # (B, H*R, M)
    offset = None
    if q_proj.bias is not None:
        bias = q_proj.bias.view(num_heads, -1, 1)
        offset = (key @ bias).flatten(1)[:, None]  # (B, 1, H*R)
    if kv.keep is not None:
        # Where all rows are hidden the softmax is uniform, so their output has to be zero.
        rows = kv.keep[:, None].expand(-1, num_heads, -1).flatten(1)  # (B, H*R)
        output = output.masked_fill(~rows[..., None], 0.0)
        hidden = torch.zeros_like(rows, dtype=score.dtype)
        hidden = hidden.masked_fill(~rows, torch.finfo(score.dtype).min / 2)[:, None]
        offset = hidden if offset is None else offset + hidden
    return FoldedKV(score, offset, output)
