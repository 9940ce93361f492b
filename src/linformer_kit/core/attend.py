"""Queries meet a memory: W_q, the attention and W_o in one go, by blocks of rows on a CPU.

What lies between the input and the output exists for a block of rows at a time, in the cache, in
memory that is used again and again. (Memory that is new to a process has to be cleared by the
system first: for a long input a good part of the time, see `allocator.py`.) In training
the queries and what they found are kept, or the weights of a folded memory; in the backward pass
nothing is as long as the input but its gradient.

Legend: B batch, N queries, R shortened rows, H heads, D head size, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import linear_into, row_blocks
from .fastpath import needs_plain_backward, plain_gradients, use_cpu_fast_path
from .memory import FoldedMemory, Memory
from .sdpa import FLASH_BACKWARD, FLASH_FORWARD, HAS_FLASH, plain_sdpa, sdpa
from .weights import for_each_head

if TYPE_CHECKING:
    from torch import nn


def attend_memory(
    x: Tensor,
    memory: Memory,
    q_proj: nn.Linear,
    out_proj: nn.Linear,
    *,
    heads: int,
    drop: float = 0.0,
) -> Tensor:
    """x (B, N, M) -> (B, N, M) through W_q, the memory and W_o. `drop`: the rate of weights."""
    if not drop and use_cpu_fast_path(x, q_proj, out_proj):
        weights = q_proj.weight, q_proj.bias, out_proj.weight, out_proj.bias
        if not torch.is_grad_enabled():
            return _inferred(x, memory, *weights, heads=heads)
        if _fits_blocked_attention(x, memory, q_proj.weight):
            key, value = for_each_head(memory.key, heads), for_each_head(memory.value, heads)
            y: Tensor = _Attention.apply(x, key, value, *weights, heads)
            return y
    query = split_heads(q_proj(x), heads)  # (B, H, N, D)
    return out_proj(join_heads(memory_sdpa(query, memory, drop=drop)))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, N, heads*D) -> (B, heads, N, D), a view."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(B, H, N, D) -> (B, N, H*D), a view where the fused kernel has made x."""
    return x.transpose(1, 2).flatten(2)


def memory_sdpa(query: Tensor, memory: Memory, *, drop: float = 0.0) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V: (B, H, N, D). On the fused kernel, unless weights are dropped."""
    mask = None if memory.keep is None else memory.keep[:, None, None]
    return sdpa(query, memory.key, memory.value, mask=mask, drop=drop)


def _fits_blocked_attention(x: Tensor, memory: Memory, w_q: Tensor) -> bool:
    """Where `_Attention` is of use: with more rows than a block, and where its kernel will do."""
    return (
        HAS_FLASH
        and memory.keep is None
        and memory.key.stride(-1) == 1
        and memory.value.stride(-1) == 1
        and x.dtype in (torch.float32, torch.float64)
        and torch.backends.cuda.flash_sdp_enabled()  # of a CPU too: `sdpa_kernel` turns it off
        and len(row_blocks(x, width=max(w_q.shape))) > 1
    )


def _inferred(
    x: Tensor,
    memory: Memory,
    w_q: Tensor,
    b_q: Tensor | None,
    w_o: Tensor,
    b_o: Tensor | None,
    *,
    heads: int,
) -> Tensor:
    y = x.new_empty(*x.shape[:2], w_o.shape[0])
    blocks = row_blocks(x, width=max(w_q.shape))
    buffer = x.new_empty(x[blocks[0]].shape[:2].numel(), w_q.shape[0])  # the first is the largest
    for block in blocks:
        some = x[block]
        query = buffer[: some.shape[:2].numel()]
        linear_into(_flat(some), w_q, b_q, out=query)
        found = memory_sdpa(
            split_heads(query.unflatten(0, some.shape[:2]), heads), memory.samples(block[0])
        )
        linear_into(_flat(join_heads(found)), w_o, b_o, out=_flat(y[block]))
    return y


class _Attention(torch.autograd.Function):
    """y = softmax(Q K^T / sqrt(D)) V W_o + b_o, Q = x W_q + b_q.

    Keeps the queries, and for each block what they found and the logarithm of the softmax's
    denominator, which the kernel's backward pass needs.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        key: Tensor,
        value: Tensor,
        w_q: Tensor,
        b_q: Tensor | None,
        w_o: Tensor,
        b_o: Tensor | None,
        heads: int,
    ) -> Tensor:
        y = x.new_empty(*x.shape[:2], w_o.shape[0])
        queries = x.new_empty(*x.shape[:2], w_q.shape[0])
        found: list[Tensor] = []
        sums: list[Tensor] = []
        for block in row_blocks(x, width=max(w_q.shape)):
            linear_into(_flat(x[block]), w_q, b_q, out=_flat(queries[block]))
            mixed, logsumexp = FLASH_FORWARD(
                split_heads(queries[block], heads), key[block[0]], value[block[0]]
            )
            linear_into(_flat(join_heads(mixed)), w_o, b_o, out=_flat(y[block]))
            found.append(mixed)
            sums.append(logsumexp)
        ctx.heads = heads
        ctx.save_for_backward(x, key, value, w_q, b_q, w_o, b_o, queries, *found, *sums)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_y = grads[0]
        saved = ctx.saved_tensors  # may be asked for once only, when checkpointing
        inputs, (queries, *kept) = saved[:7], saved[7:]
        if needs_plain_backward(grad_y):
            return plain_gradients(
                lambda *inputs: _plain(*inputs, heads=ctx.heads),
                inputs,
                grad_y,
                ctx.needs_input_grad,
            )
        x, key, value, w_q, b_q, w_o, _ = inputs
        found, sums = kept[: len(kept) // 2], kept[len(kept) // 2 :]
        need_x, _, _, need_w_q, need_b_q, need_w_o, need_b_o, _ = ctx.needs_input_grad
        grad_x = x.new_empty(x.shape) if need_x else None
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        grad_w_q = torch.zeros_like(w_q) if need_w_q else None
        grad_b_q = torch.zeros_like(b_q) if need_b_q else None
        grad_w_o = torch.zeros_like(w_o) if need_w_o else None
        for block, mixed, logsumexp in zip(
            row_blocks(x, width=max(w_q.shape)), found, sums, strict=True
        ):
            samples, upstream = block[0], _flat(grad_y[block]).contiguous()
            if grad_w_o is not None:
                grad_w_o.addmm_(upstream.t(), _flat(join_heads(mixed)))
            grad_mixed = torch.mm(upstream, w_o).unflatten(0, queries[block].shape[:2])
            grad_query, more_key, more_value = FLASH_BACKWARD(
                split_heads(grad_mixed, ctx.heads),
                split_heads(queries[block], ctx.heads),
                key[samples],
                value[samples],
                mixed,
                logsumexp,
                0.0,
                False,
            )
            grad_key[samples] += more_key
            grad_value[samples] += more_value
            rows = _flat(join_heads(grad_query))
            if grad_w_q is not None:
                grad_w_q.addmm_(rows.t(), _flat(x[block]))
            if grad_b_q is not None:
                grad_b_q += rows.sum(0)
            if grad_x is not None:
                torch.mm(rows, w_q, out=_flat(grad_x[block]))
        grad_b_o = grad_y.sum((0, 1)) if need_b_o else None
        return grad_x, grad_key, grad_value, grad_w_q, grad_b_q, grad_w_o, grad_b_o, None


def _plain(
    x: Tensor,
    key: Tensor,
    value: Tensor,
    w_q: Tensor,
    b_q: Tensor | None,
    w_o: Tensor,
    b_o: Tensor | None,
    *,
    heads: int,
) -> Tensor:
    """The same by ordinary operations."""
    query = split_heads(F.linear(x, w_q, b_q), heads)
    return F.linear(join_heads(plain_sdpa(query, key, value)), w_o, b_o)


def _flat(x: Tensor) -> Tensor:
    """(B, N, C) -> (B*N, C), a view of a block of a whole tensor."""
    return x.flatten(0, 1)


def attend_folded(x: Tensor, memory: FoldedMemory, *, heads: int) -> Tensor:
    """x (B, N, M) -> (B, N, M). On a CPU by blocks of rows, forwards and backwards."""
    if not use_cpu_fast_path(x):
        return memory.mix(memory.weights(x, heads))
    if not torch.is_grad_enabled():
        return _by_blocks(x, memory, heads)
    y: Tensor = _FoldedAttention.apply(x, memory.score, memory.offset, memory.output, heads)
    return y


def _by_blocks(
    x: Tensor, memory: FoldedMemory, heads: int, *, into: Tensor | None = None
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
        some.mix(torch.softmax(by_head, -1, out=by_head), out=y[samples, rows])
    return y


class _FoldedAttention(torch.autograd.Function):
    """y = softmax(x A + c) B.

    Only the weights are kept, and of the backward pass nothing that is as long as the input but
    the gradient of the input.
    """

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
        y = _by_blocks(x, FoldedMemory(score, offset, output), heads, into=weights)
        ctx.heads = heads
        ctx.save_for_backward(x, score, offset, output, weights)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_y = grads[0]
        x, score, offset, output, weights = ctx.saved_tensors
        if needs_plain_backward(grad_y):

            def plain(x: Tensor, *parts: Tensor) -> Tensor:
                memory = FoldedMemory(*parts)
                return memory.mix(memory.weights(x, ctx.heads))

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
            grad_weight = torch.bmm(upstream, output[samples].mT).view_as(by_head)
            grad_scores = torch._softmax_backward_data(grad_weight, by_head, -1, x.dtype).flatten(2)
            torch.bmm(grad_scores, score[samples], out=grad_x[samples, rows])
            grad_score[samples].baddbmm_(grad_scores.mT, x[samples, rows])
            grad_output[samples].baddbmm_(weight.mT, upstream)
            if grad_offset is not None:
                grad_offset[samples] += grad_scores.sum(1, keepdim=True)
        return grad_x, grad_score, grad_offset, grad_output, None
