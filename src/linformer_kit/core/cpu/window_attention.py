"""Attention with a window on a CPU: projections, attention and W_o per block of chunks.

Queries, exact keys and values and the outputs of the heads exist for one block at a time; in
training they are saved. A block calls PyTorch's fused kernel on views: its chunks with their
windows (near), and all its rows with the global positions and the compressed rows (far). Chunks at
the ends of the sequence, whose windows are shorter, have calls of their own, so nothing is padded
and, without a mask, nothing is hidden by a bias. The queries of global positions attend to the rows
of one block after the other.

Two softmaxes over disjoint keys with results o_1, o_2 and log-sum-exps l_1, l_2 are merged exactly:
o = o_2 + (o_1 - o_2) sigmoid(l_1 - l_2), l = log(exp l_1 + exp l_2).

Legend: B batch, N positions, C chunks, W window, g global positions, R compressed rows, L = g + R,
H heads, D head size, M model size; r rows, c chunks of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .allocator import reuse_freed_blocks
from .flash import FLASH_FORWARD, HAS_FLASH
from .gemm import linear_into
from .predicate import needs_plain_backward, plain_gradients, use_cpu_fast_path
from .window_blocks import (
    Block,
    Inputs,
    Layout,
    Saved,
    by_head,
    by_row,
    chunk_blocks,
    far_bias_of,
    far_keys_of,
    far_shift_of,
    rows_of_chunks,
    window_bias,
    windows,
)
from .window_gradients import WindowGradients
from .window_keys import WindowKeys

if TYPE_CHECKING:
    from ..attention import LinformerAttention


def fits_kernel(layer: LinformerAttention, x: Tensor) -> bool:
    linears = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    return (
        HAS_FLASH
        and layer.num_kv_heads == layer.num_heads
        and use_cpu_fast_path(x, *linears)
        and x.dtype in (torch.float32, torch.float64)
        and torch.backends.cuda.flash_sdp_enabled()  # of a CPU too: `sdpa_kernel` turns it off
    )


def attend_with_window_on_cpu(inputs: Inputs, layout: Layout) -> Tensor:
    """(B, N, M), for more than g positions. Only where `fits_kernel`."""
    reuse_freed_blocks()
    if torch.is_grad_enabled():
        y: Tensor = _Window.apply(*inputs, layout)
        return y
    return _forward(inputs, layout)[0]


def _forward(inputs: Inputs, layout: Layout, *, save: bool = False) -> tuple[Tensor, Saved]:
    """(B, N, M); `Saved` of all samples, or without `save` of one block of the last sample."""
    (batch, length, _), width, heads = inputs.x.shape, inputs.w_q.shape[0], layout.heads
    new = inputs.x.new_empty
    samples, rows, near = batch, length, length
    if not save:
        block = rows_of_chunks(width, layout.window)
        samples, rows, near = 1, min(block, length), min(block + 2 * layout.window, length)
    saved = Saved(
        new(samples, rows, width),
        new(samples, near, width),
        new(samples, near, width),
        new(samples, rows, width),
        new(samples, rows, heads),
        new(samples, heads, layout.seen),
    )
    y = new(batch, length, inputs.w_o.shape[0])
    for b in range(batch):
        _attend(inputs, layout, b, Saved(*(part[b if save else 0] for part in saved)), y[b])
    return y, saved


def _attend(inputs: Inputs, layout: Layout, b: int, saved: Saved, y: Tensor) -> None:
    """Write the output (N, M) of sample b to y. `saved` is that of one sample, or of a block."""
    x, seen, heads, width = inputs.x[b], layout.seen, layout.heads, inputs.w_q.shape[0]
    keys = WindowKeys(inputs, layout, b, saved.key, saved.value)
    global_query = x.new_empty(seen, width)
    global_keys = x.new_empty(seen, width), x.new_empty(seen, width)
    if seen:
        linear_into(x[:seen], inputs.w_q, inputs.b_q, out=global_query)
        keys.compute(slice(0, seen), *global_keys)
    far_keys = far_keys_of(inputs, *global_keys, layout, b)
    whole = saved.queries.shape[0] == x.shape[0]
    of_global = None
    for block in chunk_blocks(x.shape[0], layout, width):
        keys.advance(block)
        part = block.rows if whole else slice(block.rows.stop - block.rows.start)
        queries, mixed = saved.queries[part], saved.mixed[part]
        linear_into(x[block.rows], inputs.w_q, inputs.b_q, out=queries)
        far = None
        if far_keys is not None:
            bias = far_bias_of(layout, inputs.head_bias, b, block)
            far = FLASH_FORWARD(by_head(queries, heads), *far_keys, attn_mask=bias)
        _merge(queries, mixed, saved.logsumexp[part], far, keys, layout, b, block)
        linear_into(mixed, inputs.w_o, inputs.b_o, out=y[block.rows])
        if seen:
            of_block = _global_attention(global_query, keys, layout, b, block.rows)
            of_global = of_block if of_global is None else merge_softmaxes(of_global, of_block)
    if of_global is not None:
        rows, sums = by_row(of_global[0]).flatten(1), of_global[1]
        linear_into(rows, inputs.w_o, inputs.b_o, out=y[:seen])
        saved.of_global.copy_(sums[0])
        if whole:
            saved.mixed[:seen] = rows


def _global_attention(
    query: Tensor, keys: WindowKeys, layout: Layout, b: int, rows: slice
) -> tuple[Tensor, Tensor]:
    """The attention (1, H, g, D) of global queries to some positions, and its log-sum-exp."""
    bias = None if layout.key_bias is None else layout.key_bias[b, None, None, None, rows]
    result: tuple[Tensor, Tensor] = FLASH_FORWARD(
        *(by_head(each, layout.heads) for each in (query, *keys.of(rows))), attn_mask=bias
    )
    return result


def merge_softmaxes(
    one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Results (..., D) and log-sum-exps (...) over disjoint keys, merged."""
    share = torch.sigmoid(one[1] - other[1])[..., None].to(one[0].dtype)
    return torch.lerp(other[0], one[0], share), torch.logaddexp(one[1], other[1])


def _merge(
    queries: Tensor,
    mixed: Tensor,
    logsumexp: Tensor,
    far: tuple[Tensor, Tensor] | None,
    keys: WindowKeys,
    layout: Layout,
    b: int,
    block: Block,
) -> None:
    """Write the attention of a block to `mixed` (r, H*D) and its log-sum-exp to (r, H)."""
    into = mixed.unflatten(1, (layout.heads, -1))  # (r, H, D)
    if far is not None:
        far_rows, far_sum = (by_row(each) for each in far)  # (r, H, D), (r, H)
        shift = far_shift_of(layout, b, block)
        far_sum = far_sum if shift is None else far_sum + shift
    for run in block.runs:
        if run.keys.start >= run.keys.stop:  # all of its window is global
            into[run.rows], logsumexp[run.rows] = far_rows[run.rows], far_sum[run.rows]
            continue
        near, near_sum = FLASH_FORWARD(
            by_head(queries[run.rows], layout.heads, run.chunks),
            windows(keys.key, run, layout, keys.first),
            windows(keys.value, run, layout, keys.first),
            attn_mask=window_bias(layout, b, run),
        )
        rows, sums = by_row(near), by_row(near_sum).to(logsumexp.dtype)
        if far is None:
            into[run.rows], logsumexp[run.rows] = rows, sums
            continue
        other = far_sum[run.rows]
        share = torch.sigmoid(sums - other)[..., None].to(rows.dtype)
        torch.lerp(far_rows[run.rows], rows, share, out=into[run.rows])
        torch.logaddexp(sums, other.to(sums.dtype), out=logsumexp[run.rows])


class _Window(torch.autograd.Function):
    """`Inputs` -> (B, N, M). Saves queries, keys, values, outputs of the heads, log-sum-exps."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        inputs, layout = Inputs(*given[:-1]), given[-1]
        y, saved = _forward(inputs, layout, save=True)
        ctx.layout = layout
        ctx.save_for_backward(*inputs, *saved)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors, layout = ctx.saved_tensors, ctx.layout
        count = len(Inputs._fields)
        inputs, saved = Inputs(*tensors[:count]), Saved(*tensors[count:])
        if needs_plain_backward(grads[0]):
            return plain_gradients(layout.plain, inputs, grads[0], ctx.needs_input_grad)
        needed = dict(zip(Inputs._fields, ctx.needs_input_grad, strict=False))
        found = WindowGradients(inputs, saved, layout, needed).compute(grads[0])
        return (*(found.get(name) if needed[name] else None for name in Inputs._fields), None)
