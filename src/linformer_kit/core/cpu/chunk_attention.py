"""`attend_chunks` on PyTorch's fused CPU kernel, without copies of the keys.

The near and the far keys are two calls of the kernel on strided views, for a block of chunks at a
time. Two softmaxes over disjoint keys with results o_1, o_2 and log-sum-exps l_1, l_2 are merged
exactly: o = o_2 + (o_1 - o_2) sigmoid(l_1 - l_2), l = log(exp l_1 + exp l_2). The backward pass of
the kernel is called for each part with the merged o and l, which gives the gradient of the whole,
so that nothing but o and l has to be saved.

Legend: as in `core/chunks.py`; c chunks of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..plain_sdpa import repeat_kv
from .allocator import reuse_freed_blocks
from .blocks import rows_in_block
from .flash import FLASH_BACKWARD, FLASH_FORWARD, HAS_FLASH
from .predicate import eager_on_cpu, needs_plain_backward, plain_gradients

if TYPE_CHECKING:
    from ..chunks import Keys


def use_cpu_chunks(query: Tensor, near: Keys | None, far: Keys | None) -> bool:
    """Whether the kernel can be used. Only a bias of far keys may be learned."""
    return (
        HAS_FLASH
        and eager_on_cpu(query)
        and not torch.is_autocast_enabled("cpu")
        and query.numel() > 0
        and query.dtype in (torch.float32, torch.float64)
        and torch.backends.cuda.flash_sdp_enabled()  # of a CPU too: `sdpa_kernel` turns it off
        and all(
            keys is None or (keys.key.dtype == query.dtype and keys.key.numel() > 0)
            for keys in (near, far)
        )
        and not (near is not None and near.bias is not None and near.bias.requires_grad)
    )


def attend_chunks_on_cpu(query: Tensor, near: Keys | None, far: Keys | None) -> Tensor:
    """query (B, C, W, H, D) -> (B, C, W, H, D). Only where `use_cpu_chunks`."""
    heads = query.shape[3]
    parts: list[Tensor | None] = []
    for keys in (near, far):
        if keys is None:
            parts += [None, None, None]
        else:
            key, value = (_repeat(rows, heads) for rows in (keys.key, keys.value))
            parts += [key.contiguous(), value.contiguous(), keys.bias]
    result: Tensor = _Chunks.apply(query.contiguous(), *parts)
    return result


def _repeat(rows: Tensor, heads: int) -> Tensor:
    """(..., G, D) -> (..., H, D)"""
    return repeat_kv(rows.unsqueeze(-2), heads).squeeze(-2)


def _blocks(query: Tensor) -> list[tuple[int, slice]]:
    """(sample, chunks) of each block of query (B, C, W, H, D)."""
    reuse_freed_blocks()
    batch, chunks, window, heads, size = query.shape
    count = max(1, rows_in_block(heads * size) // window)
    return [(b, slice(i, i + count)) for b in range(batch) for i in range(0, chunks, count)]


def _by_head(rows: Tensor) -> Tensor:
    """(c, W, H, D) -> (c, H, W, D), a view."""
    return rows.transpose(1, 2)


def _windows(rows: Tensor, query: Tensor, b: int, block: slice) -> Tensor:
    """The windows (c, H, P*W, D) of a block: overlapping views of rows (B, C + P - 1, W, H, D)."""
    chunks, window, heads, size = query.shape[1:]
    reach = rows.shape[1] - chunks + 1
    count = min(block.stop, chunks) - block.start
    width = heads * size
    return rows[b, block].as_strided(
        (count, heads, reach * window, size), (window * width, size, width, 1)
    )


def _pick(rows: Tensor, b: int, block: slice) -> Tensor:
    """One block of a tensor (B or 1, C or 1, ...) that broadcasts."""
    sample = rows[b if rows.shape[0] > 1 else 0]
    return sample[block] if sample.shape[0] > 1 else sample


def _calls(
    query: Tensor, b: int, block: slice, parts: tuple[Tensor | None, ...]
) -> list[tuple[int, Tensor, Tensor, Tensor | None]]:
    """(index in `parts`, key, value, bias) of the kernel's calls for one block: near, far."""
    near_key, near_value, near_bias, far_key, far_value, far_bias = parts
    calls = []
    if near_key is not None and near_value is not None:
        bias = None if near_bias is None else _pick(near_bias, b, block)
        key, value = (_windows(rows, query, b, block) for rows in (near_key, near_value))
        calls.append((0, key, value, bias))
    if far_key is not None and far_value is not None:
        bias = None if far_bias is None else _pick(far_bias, b, block).unsqueeze(2)
        sizes = (len(range(*block.indices(query.shape[1]))), -1, -1, -1)
        key, value = (
            _by_head(_pick(rows, b, block)).expand(sizes) for rows in (far_key, far_value)
        )
        calls.append((3, key, value, bias))
    return calls


class _Chunks(torch.autograd.Function):
    """(B, C, W, H, D) -> (B, C, W, H, D). Saves the result and its log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, *parts: Tensor | None) -> Tensor:
        result = torch.empty_like(query)
        logsumexps = []
        for b, block in _blocks(query):
            some = _by_head(query[b, block])
            answers = [
                FLASH_FORWARD(some, key, value, attn_mask=bias)
                for _, key, value, bias in _calls(query, b, block, parts)
            ]
            mixed, logsumexp = answers[0]
            if len(answers) == 2:
                far, far_sum = answers[1]
                share = torch.sigmoid(logsumexp - far_sum)[..., None].to(mixed.dtype)
                mixed = torch.lerp(far, mixed, share)
                logsumexp = torch.logaddexp(logsumexp, far_sum)
            _by_head(result[b, block]).copy_(mixed)
            logsumexps.append(logsumexp)
        ctx.save_for_backward(query, *parts, result, *logsumexps)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, *others = ctx.saved_tensors
        parts, result, logsumexps = tuple(others[:6]), others[6], others[7:]
        if needs_plain_backward(grads[0]):
            return plain_gradients(_plain, (query, *parts), grads[0], ctx.needs_input_grad)
        upstream = grads[0].contiguous()
        grad_query = torch.empty_like(query)
        found = {
            i: torch.zeros_like(each)
            for i, each in enumerate(parts)
            if each is not None and ctx.needs_input_grad[i + 1]
        }
        for (b, block), logsumexp in zip(_blocks(query), logsumexps, strict=True):
            some, grad, out, into = (
                _by_head(rows[b, block]) for rows in (query, upstream, result, grad_query)
            )
            for number, (first, key, value, bias) in enumerate(_calls(query, b, block, parts)):
                of_query, of_key, of_value = FLASH_BACKWARD(
                    grad, some, key, value, out, logsumexp, 0.0, False, attn_mask=bias
                )
                into.copy_(of_query) if number == 0 else into.add_(of_query)
                add = _add_windows if first == 0 else _add_far
                for i, rows in ((first, of_key), (first + 1, of_value)):
                    if i in found:
                        add(found[i], rows, b, block)
                if first + 2 in found:  # only of far keys
                    weights = some @ key.mT * some.shape[-1] ** -0.5 + bias
                    weights = weights.sub_(logsumexp[..., None]).exp_()  # (c, H, W, L)
                    dot = (grad * out).sum(-1)  # (c, H, W)
                    total = (of_value * value).sum(-1) - (dot.unsqueeze(2) @ weights).squeeze(2)
                    target = _pick(found[first + 2], b, block)
                    target.add_(total.sum_to_size(target.shape))
        return (
            grad_query if ctx.needs_input_grad[0] else None,
            *(found.get(i) for i in range(len(parts))),
        )


def _add_windows(into: Tensor, windows: Tensor, b: int, block: slice) -> None:
    """Add the gradients of overlapping windows (c, H, P*W, D) to their chunks."""
    for i, part in enumerate(windows.split(into.shape[2], dim=2)):
        first = block.start + i
        _by_head(into[b, first : first + windows.shape[0]]).add_(part)


def _add_far(into: Tensor, rows: Tensor, b: int, block: slice) -> None:
    """Add the gradients (c, H, L, D) of far keys, which all chunks may share."""
    if into.shape[1] == 1:
        rows = rows.sum(0, keepdim=True)
    _by_head(_pick(into, b, block)).add_(rows)


def _plain(query: Tensor, *parts: Any) -> Tensor:
    """The same by differentiable operations."""
    from ..chunks import Keys, attend_chunks_plain

    near, far = (None if part[0] is None else Keys(*part) for part in (parts[:3], parts[3:]))
    return attend_chunks_plain(query, near, far)
