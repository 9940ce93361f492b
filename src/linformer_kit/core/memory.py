"""What queries attend to: a shortened context, as keys and values or folded with W_q and W_o.

Folded, with K_h, V_h the shortened keys and values of head h:

    A_h = W_q,h K_h^T / sqrt(D)  (M x R),   B_h = V_h W_o,h  (R x M),
    y = sum_h softmax(x A_h) B_h

which is cheaper than going through heads of size D where H * R is well below M.

Legend: B batch, N queries, R shortened rows, H heads, G key/value heads, D head size, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .weights import for_each_head

if TYPE_CHECKING:
    from torch import nn


class Memory(NamedTuple):
    """A shortened context."""

    key: Tensor  # (B, H or G, R, D)
    value: Tensor  # (B, H or G, R, D)
    keep: Tensor | None  # (B, R), False at rows that stand for padding alone

    def for_batch(self, batch: int) -> Memory:
        """The same for each of `batch` samples, if it is the memory of one."""
        if _fits(self.key, batch):
            return self
        keep = None if self.keep is None else self.keep.expand(batch, -1)
        return Memory(
            self.key.expand(batch, -1, -1, -1), self.value.expand(batch, -1, -1, -1), keep
        )

    def samples(self, which: slice) -> Memory:
        keep = None if self.keep is None else self.keep[which]
        return Memory(self.key[which], self.value[which], keep)


class FoldedMemory(NamedTuple):
    """A memory with W_q and W_o multiplied into it: scores X A + c, output softmax(...) B."""

    score: Tensor  # A^T (B, H*R, M)
    offset: Tensor | None  # c (B, 1, H*R), from the query bias and from `keep`
    output: Tensor  # B (B, H*R, M)

    def for_batch(self, batch: int) -> FoldedMemory:
        """The same for each of `batch` samples, if it is the memory of one."""
        if _fits(self.score, batch):
            return self
        offset = None if self.offset is None else self.offset.expand(batch, -1, -1)
        return FoldedMemory(
            self.score.expand(batch, -1, -1), offset, self.output.expand(batch, -1, -1)
        )

    def samples(self, which: slice) -> FoldedMemory:
        offset = None if self.offset is None else self.offset[which]
        return FoldedMemory(self.score[which], offset, self.output[which])

    def scores(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Of x (B, N, M), all heads beside each other: (B, N, H*R)."""
        if self.offset is None:
            return torch.matmul(x, self.score.mT, out=out)
        return torch.baddbmm(self.offset, x, self.score.mT, out=out)

    def weights(self, x: Tensor, heads: int) -> Tensor:
        """The attention weights of x (B, N, M): (B, N, H, R)."""
        return self.scores(x).unflatten(2, (heads, -1)).softmax(-1)

    def mix(self, weights: Tensor, *, out: Tensor | None = None) -> Tensor:
        """weights (B, N, H, R) -> the output (B, N, M)."""
        return torch.matmul(weights.flatten(2), self.output, out=out)

    def with_bias(self, bias: Tensor | None, *, heads: int) -> FoldedMemory:
        """`bias` (M) added to every output: to the rows of one head, whose weights sum to one."""
        if bias is None:
            return self
        first, others = self.output.tensor_split([self.output.shape[1] // heads], dim=1)
        return self._replace(output=torch.cat([first + bias, others], dim=1))


def _fits(rows: Tensor, batch: int) -> bool:
    """Whether a memory is one of `batch` samples; one of a single sample serves any number."""
    if torch.compiler.is_compiling():
        return True  # sizes may be symbols, and operations broadcast
    if rows.shape[0] not in (1, batch):
        raise ValueError(
            f"a memory must be of one sample, or of as many as attend to it: got {rows.shape[0]} "
            f"and {batch}."
        )
    return rows.shape[0] == batch


def fold(memory: Memory, q_proj: nn.Linear, out_proj: nn.Linear, *, num_heads: int) -> FoldedMemory:
    """Multiply W_q into the keys and W_o into the values."""
    key, value = for_each_head(memory.key, num_heads), for_each_head(memory.value, num_heads)
    key = key * key.shape[-1] ** -0.5
    w_q = q_proj.weight.unflatten(0, (num_heads, -1))  # (H, D, M)
    w_o = out_proj.weight.t().unflatten(0, (num_heads, -1))  # (H, D, M)
    score = each_head(key, w_q).flatten(1, 2)  # (B, H*R, M)
    output = each_head(value, w_o).flatten(1, 2)  # (B, H*R, M)
    offset = None
    if q_proj.bias is not None:
        bias = q_proj.bias.view(num_heads, -1, 1)
        offset = (key @ bias).flatten(1)[:, None]  # (B, 1, H*R)
    if memory.keep is not None:
        # Where all rows are hidden the softmax is even, so what they hold has to be nothing.
        rows = memory.keep[:, None].expand(-1, num_heads, -1).flatten(1)  # (B, H*R)
        output = output.masked_fill(~rows[..., None], 0.0)
        hidden = torch.zeros_like(rows, dtype=score.dtype)
        hidden = hidden.masked_fill(~rows, torch.finfo(score.dtype).min / 2)[:, None]
        offset = hidden if offset is None else offset + hidden
    return FoldedMemory(score, offset, output)


def each_head(rows: Tensor, weight: Tensor) -> Tensor:
    """rows (B, H, R, C) times weight (H, C, M) -> (B, H, R, M).

    The batch is folded into the rows: `@` would copy the weight for each sample.
    """
    batch, _, count, _ = rows.shape
    folded = rows.transpose(0, 1).flatten(1, 2)  # (H, B*R, C)
    return torch.bmm(folded, weight).unflatten(1, (batch, count)).transpose(0, 1)
