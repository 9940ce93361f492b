"""What queries attend to: a shortened context, as keys and values or folded with W_q and W_o.

Folded, with K_h, V_h the shortened keys and values of head h:

    A_h = W_q,h K_h^T / sqrt(D)  (M x R),   B_h = V_h W_o,h  (R x M),
    y = sum_h softmax(x A_h) B_h

which is cheaper than going through heads of size D where H * R is well below M.

Legend: B batch, N queries, R shortened rows, H heads, G key/value heads, D head size, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .blocks import on_cpu_eagerly, row_blocks

if TYPE_CHECKING:
    from torch import nn


class Memory(NamedTuple):
    """A shortened context."""

    key: Tensor  # (B, H or G, R, D)
    value: Tensor  # (B, H or G, R, D)
    keep: Tensor | None  # (B, R), False at rows that stand for padding alone

    def samples(self, which: slice) -> Memory:
        keep = None if self.keep is None else self.keep[which]
        return Memory(self.key[which], self.value[which], keep)


class FoldedMemory(NamedTuple):
    """A memory with W_q and W_o multiplied into it: scores X A + c, output softmax(...) B."""

    score: Tensor  # A^T (B, H*R, M)
    offset: Tensor | None  # c (B, 1, H*R), from the query bias and from `keep`
    output: Tensor  # B (B, H*R, M)

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

    def mix(self, weights: Tensor, bias: Tensor | None, *, out: Tensor | None = None) -> Tensor:
        """weights (B, N, H, R) -> the output (B, N, M), `bias` (M) added."""
        if bias is None:
            return torch.matmul(weights.flatten(2), self.output, out=out)
        return torch.baddbmm(bias, weights.flatten(2), self.output, out=out)


def fold(memory: Memory, q_proj: nn.Linear, out_proj: nn.Linear, *, num_heads: int) -> FoldedMemory:
    """Multiply W_q into the keys and W_o into the values."""
    key, value = for_all_heads(memory.key, num_heads), for_all_heads(memory.value, num_heads)
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


def trains_by_blocks(x: Tensor) -> bool:
    """Whether `attend_folded` has a backward pass of its own here."""
    return torch.is_grad_enabled() and works_by_blocks(x)


def works_by_blocks(x: Tensor) -> bool:
    """Whether `attend_folded` goes by blocks of rows: where results may be put in place."""
    return (
        on_cpu_eagerly(x)
        and x.numel() > 0
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def attend_folded(x: Tensor, memory: FoldedMemory, bias: Tensor | None, heads: int) -> Tensor:
    """x (B, N, M) -> (B, N, M). On a CPU by blocks of rows, forwards and backwards."""
    if not works_by_blocks(x):
        return memory.mix(memory.weights(x, heads), bias)
    if not torch.is_grad_enabled():
        return _by_blocks(x, memory, bias, heads)
    y, _ = _FoldedAttention.apply(x, memory.score, memory.offset, memory.output, bias, heads)
    return y


def _by_blocks(
    x: Tensor,
    memory: FoldedMemory,
    bias: Tensor | None,
    heads: int,
    *,
    into: Tensor | None = None,
) -> Tensor:
    """y (B, N, M), each block written where it stands; the weights go `into` (B, N, H*R)."""
    y = x.new_empty(*x.shape[:2], memory.output.shape[2])
    blocks = row_blocks(x, width=max(x.shape[2], memory.score.shape[1]))
    if into is None:
        samples, rows = blocks[0]  # the largest
        scratch = x.new_empty(*x[samples, rows].shape[:2], memory.score.shape[1])
    for samples, rows in blocks:
        some, some_rows = memory.samples(samples), x[samples, rows]
        if into is None:
            weights = scratch[: some_rows.shape[0], : some_rows.shape[1]]
        else:
            weights = into[samples, rows]
        by_head = some.scores(some_rows, out=weights).unflatten(2, (heads, -1))
        some.mix(torch.softmax(by_head, -1, out=by_head), bias, out=y[samples, rows])
    return y


class _FoldedAttention(torch.autograd.Function):
    """y = softmax(x A + c) B + b. Also returns the weights, which backward needs.

    Only the weights are kept, and of the backward pass nothing that is as long as the input but
    the gradient of the input.
    """

    @staticmethod
    def forward(
        x: Tensor,
        score: Tensor,
        offset: Tensor | None,
        output: Tensor,
        bias: Tensor | None,
        heads: int,
    ) -> tuple[Tensor, Tensor]:
        weights = x.new_empty(*x.shape[:2], score.shape[1])
        memory = FoldedMemory(score, offset, output)
        y = _by_blocks(x, memory, bias, heads, into=weights)
        return y, weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, score, offset, folded, bias, ctx.heads = inputs
        _, weights = output
        ctx.mark_non_differentiable(weights)
        ctx.save_for_backward(x, score, offset, folded, bias, weights)
        ctx.set_materialize_grads(False)  # or `weights` would get zeros for its gradient

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_y = grads[0]
        if grad_y is None:
            return (None,) * 6
        x, score, offset, output, bias, weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of the gradient is wanted
            memory = FoldedMemory(score, offset, output)
            y = memory.mix(memory.weights(x, ctx.heads), bias)
            return _gradients(y, (x, score, offset, output, bias), grad_y, ctx.needs_input_grad)
        grad_x = torch.empty_like(x)
        grad_score = torch.zeros_like(score)
        grad_output = torch.zeros_like(output)
        grad_offset = None if offset is None else torch.zeros_like(offset)
        for samples, rows in row_blocks(x, width=max(x.shape[2], score.shape[1])):
            upstream, weight = (
                grad_y[samples, rows],
                weights[samples, rows],
            )  # (B, N, M), (B, N, HR)
            by_head = weight.unflatten(2, (ctx.heads, -1))
            grad_weight = torch.bmm(upstream, output[samples].mT).view_as(by_head)
            grad_scores = torch._softmax_backward_data(grad_weight, by_head, -1, x.dtype).flatten(2)
            torch.bmm(grad_scores, score[samples], out=grad_x[samples, rows])
            grad_score[samples].baddbmm_(grad_scores.mT, x[samples, rows])
            grad_output[samples].baddbmm_(weight.mT, upstream)
            if grad_offset is not None:
                grad_offset[samples] += grad_scores.sum(1, keepdim=True)
        grad_bias = None if bias is None else grad_y.sum((0, 1))
        return grad_x, grad_score, grad_offset, grad_output, grad_bias, None


def _gradients(
    y: Tensor, inputs: tuple[Tensor | None, ...], grad_y: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Those gradients that are needed, and None for what has no gradient, such as `heads`."""
    wanted = [each for each, need in zip(inputs, needed, strict=False) if need and each is not None]
    found = iter(torch.autograd.grad(y, wanted, grad_y, create_graph=True))
    return tuple(next(found) if need else None for need in needed)


def for_all_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, G or H, R, D) -> (B, H, R, D)"""
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def each_head(rows: Tensor, weight: Tensor) -> Tensor:
    """rows (B, H, R, C) times weight (H, C, M) -> (B, H, R, M).

    The batch is folded into the rows: `@` would copy the weight for each sample.
    """
    batch, _, count, _ = rows.shape
    folded = rows.transpose(0, 1).flatten(1, 2)  # (H, B*R, C)
    return torch.bmm(folded, weight).unflatten(1, (batch, count)).transpose(0, 1)
