"""Attention to compressed keys and values: query projection, attention and output projection per
block of rows.

Intermediate results exist for one block at a time, in the cache and in reused memory. (Memory that
is new to a process has to be cleared by the system first, see `allocator.py`.) In training the
queries and the outputs of the heads are saved. The backward pass allocates only one tensor as long
as the input: its gradient.

Legend: B batch, N queries, R compressed rows, H heads, D head size, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compressed_kv import CompressedKV, ContextKV, FoldedKV
from ..plain_sdpa import join_heads, plain_sdpa, repeat_kv, split_heads
from ..sdpa import sdpa
from .blocks import row_blocks
from .flash import FLASH_BACKWARD, FLASH_FORWARD, HAS_FLASH
from .folded_attention import attend_folded_in_blocks
from .gemm import add_transposed_matmul_, linear_into, matmul, matmul_into
from .predicate import needs_plain_backward, plain_gradients

if TYPE_CHECKING:
    from torch import nn


def attend_in_blocks(
    x: Tensor, kv: ContextKV, q_proj: nn.Linear, out_proj: nn.Linear, *, heads: int
) -> Tensor:
    """x (B, N, M) -> (B, N, M). Only where `use_cpu_fast_path(x, q_proj, out_proj)`."""
    if isinstance(kv, FoldedKV):
        return attend_folded_in_blocks(x, kv.with_bias(out_proj.bias, heads=heads), heads=heads)
    w_q, b_q, w_o, b_o = q_proj.weight, q_proj.bias, out_proj.weight, out_proj.bias
    if not torch.is_grad_enabled():
        return _inference(x, kv, w_q, b_q, w_o, b_o, heads=heads)
    if _fits_blocked_attention(x, kv, w_q):
        key, value = repeat_kv(kv.key, heads), repeat_kv(kv.value, heads)
        y: Tensor = _Attention.apply(x, key, value, w_q, b_q, w_o, b_o, heads)
        return y
    query = split_heads(F.linear(x, w_q, b_q), heads)  # (B, H, N, D)
    return F.linear(join_heads(sdpa(query, kv.key, kv.value, mask=kv.mask)), w_o, b_o)


def _fits_blocked_attention(x: Tensor, kv: CompressedKV, w_q: Tensor) -> bool:
    """Whether `_Attention` helps (more rows than one block) and its kernel can be used."""
    return (
        HAS_FLASH
        and kv.keep is None
        and kv.key.stride(-1) == 1
        and kv.value.stride(-1) == 1
        and x.dtype in (torch.float32, torch.float64)
        and torch.backends.cuda.flash_sdp_enabled()  # of a CPU too: `sdpa_kernel` turns it off
        and len(row_blocks(x, width=max(w_q.shape))) > 1
    )


def _inference(
    x: Tensor,
    kv: CompressedKV,
    w_q: Tensor,
    b_q: Tensor | None,
    w_o: Tensor,
    b_o: Tensor | None,
    *,
    heads: int,
) -> Tensor:
    y = x.new_empty(*x.shape[:2], w_o.shape[0])
    blocks = row_blocks(x, width=max(w_q.shape))
    # The first block is the largest.
    buffer = x.new_empty(x[blocks[0]].shape[:2].numel(), w_q.shape[0])
    for block in blocks:
        some = x[block]
        query, part = buffer[: some.shape[:2].numel()], kv.samples(block[0])
        linear_into(_flat(some), w_q, b_q, out=query)
        mixed = sdpa(
            split_heads(query.unflatten(0, some.shape[:2]), heads),
            part.key,
            part.value,
            mask=part.mask,
        )
        linear_into(_flat(join_heads(mixed)), w_o, b_o, out=_flat(y[block]))
    return y


class _Attention(torch.autograd.Function):
    """y = softmax(Q K^T / sqrt(D)) V W_o + b_o, Q = x W_q + b_q.

    Saves the queries, and for each block the output of the heads and the logarithm of the softmax's
    denominator, which the backward pass of the kernel needs.
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
        mixed_blocks: list[Tensor] = []
        logsumexps: list[Tensor] = []
        for block in row_blocks(x, width=max(w_q.shape)):
            linear_into(_flat(x[block]), w_q, b_q, out=_flat(queries[block]))
            mixed, logsumexp = FLASH_FORWARD(
                split_heads(queries[block], heads), key[block[0]], value[block[0]]
            )
            linear_into(_flat(join_heads(mixed)), w_o, b_o, out=_flat(y[block]))
            mixed_blocks.append(mixed)
            logsumexps.append(logsumexp)
        ctx.heads = heads
        ctx.save_for_backward(
            x, key, value, w_q, b_q, w_o, b_o, queries, *mixed_blocks, *logsumexps
        )
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_y = grads[0]
        saved = ctx.saved_tensors  # under checkpointing they may be read only once
        inputs, (queries, *kept) = saved[:7], saved[7:]
        if needs_plain_backward(grad_y):
            return plain_gradients(
                lambda *inputs: _plain(*inputs, heads=ctx.heads),
                inputs,
                grad_y,
                ctx.needs_input_grad,
            )
        x, key, value, w_q, b_q, w_o, _ = inputs
        mixed_blocks, logsumexps = kept[: len(kept) // 2], kept[len(kept) // 2 :]
        need_x, _, _, need_w_q, need_b_q, need_w_o, need_b_o, _ = ctx.needs_input_grad
        grad_x = x.new_empty(x.shape) if need_x else None
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        grad_w_q = torch.zeros_like(w_q) if need_w_q else None
        grad_b_q = torch.zeros_like(b_q) if need_b_q else None
        grad_w_o = torch.zeros_like(w_o) if need_w_o else None
        for block, mixed, logsumexp in zip(
            row_blocks(x, width=max(w_q.shape)), mixed_blocks, logsumexps, strict=True
        ):
            samples, upstream = block[0], _flat(grad_y[block]).contiguous()
            if grad_w_o is not None:
                add_transposed_matmul_(grad_w_o, upstream, _flat(join_heads(mixed)))
            grad_mixed = matmul(upstream, w_o).unflatten(0, queries[block].shape[:2])
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
                add_transposed_matmul_(grad_w_q, rows, _flat(x[block]))
            if grad_b_q is not None:
                grad_b_q += rows.sum(0)
            if grad_x is not None:
                matmul_into(rows, w_q, out=_flat(grad_x[block]))
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
    """The same by differentiable operations."""
    query = split_heads(F.linear(x, w_q, b_q), heads)
    return F.linear(join_heads(plain_sdpa(query, key, value)), w_o, b_o)


def _flat(x: Tensor) -> Tensor:
    """(B, N, C) -> (B*N, C), a view of a block of a whole tensor."""
    return x.flatten(0, 1)
