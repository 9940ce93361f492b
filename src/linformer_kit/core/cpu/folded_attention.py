"""Attention with folded keys and values, softmax(x A + c) B, per block of rows.

In training the weights of the attention are saved.

Legend: B batch, N queries, R compressed rows, H heads, M model size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..compressed_kv import FoldedKV
from .blocks import row_blocks
from .gemm import add_transposed_samples_, linear_samples_into
from .predicate import needs_plain_backward, plain_gradients


def attend_folded_in_blocks(x: Tensor, kv: FoldedKV, *, heads: int) -> Tensor:
    """softmax(x A + c) B: x (B, N, M) -> (B, N, M)."""
    if not torch.is_grad_enabled():
        return _folded(x, kv, heads)
    y: Tensor = _FoldedAttention.apply(x, kv.score, kv.offset, kv.output, heads)
    return y


def _folded(x: Tensor, kv: FoldedKV, heads: int, *, into: Tensor | None = None) -> Tensor:
    """y (B, N, M). The weights are written to `into` (B, N, H*R), if it is given."""
    y = x.new_empty(*x.shape[:2], kv.output.shape[2])
    blocks = row_blocks(x, width=max(x.shape[2], kv.score.shape[1]))
    if into is None:
        samples, rows = blocks[0]  # the largest
        scratch = x.new_empty(*x[samples, rows].shape[:2], kv.score.shape[1])
    for samples, rows in blocks:
        some, some_rows = kv.samples(samples), x[samples, rows]
        if into is None:
            weights = scratch[: some_rows.shape[0], : some_rows.shape[1]]
        else:
            weights = into[samples, rows]
        linear_samples_into(some_rows, some.score, some.offset, out=weights)
        by_head = weights.unflatten(2, (heads, -1))
        torch.softmax(by_head, -1, out=by_head)
        linear_samples_into(weights, some.output.mT, None, out=y[samples, rows])
    return y


class _FoldedAttention(torch.autograd.Function):
    """y = softmax(x A + c) B. Saves the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        score: Tensor,
        offset: Tensor | None,
        output: Tensor,
        heads: int,
    ) -> Tensor:
        weights = x.new_empty(*x.shape[:2], score.shape[1])
        y = _folded(x, FoldedKV(score, offset, output), heads, into=weights)
        ctx.heads = heads
        ctx.save_for_backward(x, score, offset, output, weights)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_y = grads[0]
        x, score, offset, output, weights = ctx.saved_tensors
        if needs_plain_backward(grad_y):

            def plain(x: Tensor, *parts: Tensor) -> Tensor:
                kv = FoldedKV(*parts)
                return kv.mix(kv.weights(x, ctx.heads))

            inputs = (x, score, offset, output)
            return plain_gradients(plain, inputs, grad_y, ctx.needs_input_grad)
        grad_x = torch.empty_like(x)
        grad_score = torch.zeros_like(score)
        grad_output = torch.zeros_like(output)
        grad_offset = None if offset is None else torch.zeros_like(offset)
        for samples, rows in row_blocks(x, width=max(x.shape[2], score.shape[1])):
            upstream = grad_y[samples, rows].contiguous()  # (B, N, M)
            weight = weights[samples, rows]  # (B, N, H*R)
            by_head = weight.unflatten(2, (ctx.heads, -1))
            grad_weight = torch.empty_like(weight)
            linear_samples_into(upstream, output[samples], None, out=grad_weight)
            grad_scores = torch._softmax_backward_data(
                grad_weight.view_as(by_head), by_head, -1, x.dtype
            ).flatten(2)
            linear_samples_into(grad_scores, score[samples].mT, None, out=grad_x[samples, rows])
            add_transposed_samples_(grad_score[samples], grad_scores, x[samples, rows])
            add_transposed_samples_(grad_output[samples], weight, upstream)
            if grad_offset is not None:
                grad_offset[samples] += grad_scores.sum(1, keepdim=True)
        return grad_x, grad_score, grad_offset, grad_output, None
