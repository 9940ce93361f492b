"""Attention with a window on a CPU: projections, attention and W_o per block of chunks.

The keys and values of the whole sequence are computed first. Queries and the outputs of the heads
then exist for one block at a time; in training they are saved. A block calls PyTorch's fused kernel
on views: its chunks with their windows (near), and all its rows with the global positions and the
compressed rows (far). Chunks at the ends of the sequence, whose windows are shorter, have calls of
their own, so nothing is padded and, without a mask, nothing is hidden by a bias.

Two softmaxes over disjoint keys with results o_1, o_2 and log-sum-exps l_1, l_2 are merged exactly:
o = o_2 + (o_1 - o_2) sigmoid(l_1 - l_2), l = log(exp l_1 + exp l_2). The backward pass of the
kernel is called for each part with the merged o and l, which gives the gradient of the whole.

Legend: B batch, N positions, C chunks, W window, g global positions, R compressed rows, L = g + R,
H heads, D head size, M model size; r rows, c chunks of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .allocator import reuse_freed_blocks
from .blocks import linear_into, rows_in_block
from .flash import FLASH_BACKWARD, FLASH_FORWARD, HAS_FLASH
from .predicate import needs_plain_backward, plain_gradients, use_cpu_fast_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..attention import LinformerAttention


@dataclass(frozen=True)
class Layout:
    """The part of a call that has no gradient."""

    heads: int
    window: int
    seen: int  # g
    key_bias: Tensor | None  # (B, N), hides padding
    far_bias: Tensor | None  # (B or 1, C or 1, L), added to the scores of far keys
    far_shift: Tensor | None  # (B or 1, C), added to the scores of all far keys of a chunk
    value_factor: Tensor | None  # (B, N, H, 1), dropout of values
    plain: Callable[..., Tensor]  # the same function of the inputs by differentiable operations


class Inputs(NamedTuple):
    """The part of a call that may have a gradient."""

    x: Tensor  # (B, N, M), zero at padding
    w_q: Tensor
    b_q: Tensor | None
    w_k: Tensor
    b_k: Tensor | None
    w_v: Tensor
    b_v: Tensor | None
    w_o: Tensor
    b_o: Tensor | None
    row_key: Tensor | None  # (B, H, R, D)
    row_value: Tensor | None
    head_bias: Tensor | None  # (H, L), added to the scores of far keys


def use_cpu_window(layer: LinformerAttention, x: Tensor) -> bool:
    linears = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    return (
        HAS_FLASH
        and layer.num_kv_heads == layer.num_heads
        and use_cpu_fast_path(x, *linears)
        and x.dtype in (torch.float32, torch.float64)
        and torch.backends.cuda.flash_sdp_enabled()  # of a CPU too: `sdpa_kernel` turns it off
    )


def attend_with_window_on_cpu(inputs: Inputs, layout: Layout) -> Tensor:
    """(B, N, M), for more than g positions. Only where `use_cpu_window`."""
    reuse_freed_blocks()
    if torch.is_grad_enabled():
        y: Tensor = _Window.apply(*inputs, layout)
        return y
    return _forward(inputs, layout)[0]


class _Run(NamedTuple):
    """Adjacent chunks of a block with complete windows, or one chunk: c of them."""

    rows: slice  # of the block
    chunks: int
    keys: slice  # the window of the first chunk; every further one is W keys later


class _Block(NamedTuple):
    rows: slice  # of the sequence
    chunks: slice
    runs: list[_Run]


def _blocks(length: int, layout: Layout, width: int) -> Iterator[_Block]:
    window, seen = layout.window, layout.seen
    step = max(1, rows_in_block(width) // window)
    for first in range(0, -(-length // window), step):
        rows = slice(first * window, min((first + step) * window, length))
        runs: list[_Run] = []
        for start in range(rows.start, rows.stop, window):
            keys = slice(max(start - window, seen), min(start + 2 * window, length))
            complete = keys.stop - keys.start == 3 * window
            own = slice(start - rows.start, min(start + window, length) - rows.start)
            if complete and runs and runs[-1].keys.stop - runs[-1].keys.start == 3 * window:
                run = runs.pop()
                runs.append(_Run(slice(run.rows.start, own.stop), run.chunks + 1, run.keys))
            else:
                runs.append(_Run(own, 1, keys))
        yield _Block(rows, slice(first, first + step), runs)


def _by_head(rows: Tensor, heads: int, chunks: int = 1) -> Tensor:
    """(c*W, H*D) -> (c, H, W, D), a view."""
    return rows.view(chunks, rows.shape[0] // chunks, heads, -1).transpose(1, 2)


def _by_row(heads: Tensor) -> Tensor:
    """(c, H, W, ...) -> (c*W, H, ...); a view of what the kernel returns."""
    return heads.transpose(1, 2).flatten(0, 1)


def _windows(rows: Tensor, run: _Run, layout: Layout) -> Tensor:
    """The windows (c, H, keys, D) of a run: overlapping views of rows (N, H*D)."""
    size, width = run.keys.stop - run.keys.start, rows.shape[1]
    head = width // layout.heads
    return rows[run.keys.start :].as_strided(
        (run.chunks, layout.heads, size, head), (layout.window * width, head, width, 1)
    )


def _window_bias(layout: Layout, b: int, run: _Run) -> Tensor | None:
    """(c, 1, 1, keys), a view."""
    if layout.key_bias is None:
        return None
    size = run.keys.stop - run.keys.start
    return layout.key_bias[b, run.keys.start :].as_strided(
        (run.chunks, 1, 1, size), (layout.window, 0, 0, 1)
    )


def _far_bias(layout: Layout, head_bias: Tensor | None, b: int, block: _Block) -> Tensor | None:
    """(1, H or 1, r or 1, L)"""
    bias = None if head_bias is None else head_bias[None, :, None]
    if layout.far_bias is None:
        return bias
    of_chunk = layout.far_bias[b if layout.far_bias.shape[0] > 1 else 0]  # (C or 1, L)
    if of_chunk.shape[0] > 1:
        of_chunk = _each_row(of_chunk[block.chunks], block, layout)  # (r, L)
    return of_chunk[None, None] if bias is None else bias + of_chunk


def _far_shift(layout: Layout, b: int, block: _Block) -> Tensor | None:
    """(r, 1)"""
    if layout.far_shift is None:
        return None
    of_chunk = layout.far_shift[b if layout.far_shift.shape[0] > 1 else 0, block.chunks, None]
    return _each_row(of_chunk, block, layout)


def _each_row(of_chunk: Tensor, block: _Block, layout: Layout) -> Tensor:
    """(c, ...) -> (r, ...)"""
    count = block.rows.stop - block.rows.start
    return of_chunk.repeat_interleave(layout.window, 0)[:count]


def _far_keys(of_rows: Tensor | None, rows: Tensor, layout: Layout, b: int) -> Tensor | None:
    """Global positions, of rows (N, H*D), then compressed rows: (1, H, L, D)."""
    parts = [] if of_rows is None else [of_rows[b : b + 1]]
    if layout.seen:
        parts.insert(0, _by_head(rows[: layout.seen], layout.heads))
    return torch.cat(parts, dim=2) if parts else None


class _Saved(NamedTuple):
    """What the backward pass needs besides the inputs; one block of it in inference."""

    queries: Tensor  # (B, N, H*D)
    key: Tensor
    value: Tensor
    mixed: Tensor  # the outputs of the heads
    logsumexp: Tensor  # (B, N, H), of both softmaxes together
    of_global: Tensor  # (B, H, g), of the queries of global positions


def _forward(inputs: Inputs, layout: Layout, *, save: bool = False) -> tuple[Tensor, _Saved]:
    x, w_q, b_q = inputs[:3]
    (batch, length, _), width, heads, seen = x.shape, w_q.shape[0], layout.heads, layout.seen
    kept = (batch, length) if save else (1, min(length, rows_in_block(width) + layout.window))
    key, value = F.linear(x, inputs.w_k, inputs.b_k), F.linear(x, inputs.w_v, inputs.b_v)
    if layout.value_factor is not None:
        value.unflatten(2, (heads, -1)).mul_(layout.value_factor)
    saved = _Saved(
        x.new_empty(*kept, width),
        key,
        value,
        x.new_empty(*kept, width),
        x.new_empty(*kept, heads),
        x.new_empty(batch, heads, seen),
    )
    y = x.new_empty(batch, length, inputs.w_o.shape[0])
    for b in range(batch):
        far_key = _far_keys(inputs.row_key, key[b], layout, b)
        far_value = _far_keys(inputs.row_value, value[b], layout, b)
        for block in _blocks(length, layout, width):
            part = (b, block.rows) if save else (0, slice(block.rows.stop - block.rows.start))
            queries, mixed = saved.queries[part], saved.mixed[part]
            linear_into(x[b, block.rows], w_q, b_q, out=queries)
            if block.rows.start == 0 and seen:
                global_queries = queries[:seen].clone()
            far = None
            if far_key is not None:
                bias = _far_bias(layout, inputs.head_bias, b, block)
                far = FLASH_FORWARD(_by_head(queries, heads), far_key, far_value, attn_mask=bias)
            _merge(queries, mixed, saved.logsumexp[part], far, key[b], value[b], layout, b, block)
            linear_into(mixed, inputs.w_o, inputs.b_o, out=y[b, block.rows])
        if seen:
            bias = None if layout.key_bias is None else layout.key_bias[b, None, None, None]
            every, of_global = FLASH_FORWARD(
                *(_by_head(rows, heads) for rows in (global_queries, key[b], value[b])),
                attn_mask=bias,
            )
            saved.of_global[b] = of_global[0]
            rows = _by_row(every).flatten(1)
            linear_into(rows, inputs.w_o, inputs.b_o, out=y[b, :seen])
            if save:
                saved.mixed[b, :seen] = rows
    return y, saved


def _merge(
    queries: Tensor,
    mixed: Tensor,
    logsumexp: Tensor,
    far: tuple[Tensor, Tensor] | None,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    b: int,
    block: _Block,
) -> None:
    """Write the attention of a block to `mixed` (r, H*D) and its log-sum-exp to (r, H)."""
    into = mixed.unflatten(1, (layout.heads, -1))  # (r, H, D)
    if far is not None:
        far_rows, far_sum = (_by_row(each) for each in far)  # (r, H, D), (r, H)
        shift = _far_shift(layout, b, block)
        far_sum = far_sum if shift is None else far_sum + shift
    for run in block.runs:
        if run.keys.start >= run.keys.stop:  # all of its window is global
            into[run.rows], logsumexp[run.rows] = far_rows[run.rows], far_sum[run.rows]
            continue
        near, near_sum = FLASH_FORWARD(
            _by_head(queries[run.rows], layout.heads, run.chunks),
            _windows(key, run, layout),
            _windows(value, run, layout),
            attn_mask=_window_bias(layout, b, run),
        )
        rows, sums = _by_row(near), _by_row(near_sum).to(logsumexp.dtype)
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
        inputs, saved = Inputs(*tensors[:count]), _Saved(*tensors[count:])
        if needs_plain_backward(grads[0]):
            return plain_gradients(layout.plain, inputs, grads[0], ctx.needs_input_grad)
        needed = dict(zip(Inputs._fields, ctx.needs_input_grad, strict=False))
        found = _Gradients(inputs, saved, layout, needed).compute(grads[0])
        return (*(found.get(name) if needed[name] else None for name in Inputs._fields), None)


class _Gradients:
    """The backward pass: the gradients of `Inputs` by name, accumulated block by block."""

    def __init__(
        self, inputs: Inputs, saved: _Saved, layout: Layout, needed: dict[str, bool]
    ) -> None:
        self.inputs, self.saved, self.layout = inputs, saved, layout
        zeros = {"w_q", "b_q", "w_o", "row_key", "row_value", "head_bias"}
        self.found = {
            name: torch.zeros_like(tensor, memory_format=torch.contiguous_format)
            for name, tensor in inputs._asdict().items()
            if needed[name] and name in zeros
        }
        self.found["x"] = torch.empty_like(inputs.x, memory_format=torch.contiguous_format)
        self.key, self.value = torch.zeros_like(saved.key), torch.zeros_like(saved.value)
        self.needed = needed

    def compute(self, grad_y: Tensor) -> dict[str, Tensor]:
        inputs, layout, found = self.inputs, self.layout, self.found
        length, width = inputs.x.shape[1], inputs.w_q.shape[0]
        for b in range(inputs.x.shape[0]):
            self._begin_sample(b)
            of_global = grad_y.new_empty(layout.seen, width)
            for block in _blocks(length, layout, width):
                upstream = grad_y[b, block.rows].contiguous()
                if "w_o" in found:
                    found["w_o"].addmm_(upstream.t(), self.saved.mixed[b, block.rows])
                grad = torch.mm(upstream, inputs.w_o)  # (r, H*D)
                ending = max(0, min(layout.seen, block.rows.stop) - block.rows.start)
                if ending:  # these rows attend to all positions: `_global_queries`
                    of_global[block.rows.start : block.rows.start + ending] = grad[:ending]
                    grad[:ending] = 0.0
                grad_query = self._block(grad, b, block)
                self._queries(grad_query, b, block.rows)
                torch.mm(grad_query, inputs.w_q, out=found["x"][b, block.rows])
            if layout.seen:
                self._global_queries(of_global, b)
            self._end_sample(b)
        self._keys_and_values()
        if self.needed["b_o"]:
            found["b_o"] = grad_y.sum((0, 1))
        return found

    def _begin_sample(self, b: int) -> None:
        self.far_key = _far_keys(self.inputs.row_key, self.saved.key[b], self.layout, b)
        self.far_value = _far_keys(self.inputs.row_value, self.saved.value[b], self.layout, b)
        if self.far_key is not None and self.far_value is not None:
            self.grad_far = torch.zeros_like(self.far_key), torch.zeros_like(self.far_value)

    def _block(self, grad: Tensor, b: int, block: _Block) -> Tensor:
        """The gradient of the queries (r, H*D) from that of the outputs of the heads."""
        heads, layout = self.layout.heads, self.layout
        queries, out, sums = (
            rows[b, block.rows]
            for rows in (self.saved.queries, self.saved.mixed, self.saved.logsumexp)
        )
        grad_query = None
        if self.far_key is not None and self.far_value is not None:
            shift = _far_shift(layout, b, block)
            # As if the shift were part of the scores: exp(score + shift - l).
            of_far = sums if shift is None else (sums - shift).to(sums.dtype)
            bias = _far_bias(layout, self.inputs.head_bias, b, block)
            logsumexp = of_far.t()[None]  # (1, H, r)
            of_query, of_key, of_value = FLASH_BACKWARD(
                *(_by_head(rows, heads) for rows in (grad, queries)),
                self.far_key,
                self.far_value,
                _by_head(out, heads),
                logsumexp,
                0.0,
                False,
                attn_mask=bias,
            )
            self.grad_far[0].add_(of_key)
            self.grad_far[1].add_(of_value)
            if "head_bias" in self.found:
                self._head_bias(grad, queries, out, of_value, logsumexp[0], bias)
            grad_query = _by_row(of_query).flatten(1)
        for run in block.runs:
            if run.keys.start >= run.keys.stop:
                continue
            of_query, of_key, of_value = FLASH_BACKWARD(
                *(_by_head(rows[run.rows], heads, run.chunks) for rows in (grad, queries)),
                _windows(self.saved.key[b], run, layout),
                _windows(self.saved.value[b], run, layout),
                _by_head(out[run.rows], heads, run.chunks),
                sums[run.rows].view(run.chunks, -1, heads).transpose(1, 2),
                0.0,
                False,
                attn_mask=_window_bias(layout, b, run),
            )
            if grad_query is None:
                grad_query = torch.empty_like(grad)
            rows = grad_query[run.rows]
            of_query = _by_row(of_query).flatten(1)
            rows.copy_(of_query) if self.far_key is None else rows.add_(of_query)
            _add_windows(self.key[b], of_key, run, layout)
            _add_windows(self.value[b], of_value, run, layout)
        assert grad_query is not None
        return grad_query

    def _head_bias(
        self,
        grad: Tensor,
        queries: Tensor,
        out: Tensor,
        grad_value: Tensor,
        logsumexp: Tensor,
        bias: Tensor | None,
    ) -> None:
        """sum_i P_ij (dP_ij - dot_i), with sum_i P_ij dP_ij = dV_j . V_j."""
        assert self.far_key is not None and self.far_value is not None
        assert bias is not None
        heads = self.layout.heads
        query, key = _by_head(queries, heads)[0], self.far_key[0]  # (H, r, D), (H, L, D)
        scale = query.shape[-1] ** -0.5
        weights = torch.baddbmm(bias[0], query, key.mT, alpha=scale)  # (H, r, L)
        weights = weights.sub_(logsumexp[..., None]).exp_()
        dot = (grad * out).view(-1, heads, query.shape[-1]).sum(-1).t()  # (H, r)
        total = (grad_value * self.far_value).sum(-1)[0]
        self.found["head_bias"].add_(total - (dot[:, None] @ weights)[:, 0])

    def _queries(self, grad_query: Tensor, b: int, rows: slice) -> None:
        if "w_q" in self.found:
            self.found["w_q"].addmm_(grad_query.t(), self.inputs.x[b, rows])
        if "b_q" in self.found:
            self.found["b_q"].add_(grad_query.sum(0))

    def _global_queries(self, grad: Tensor, b: int) -> None:
        """The queries of global positions, which attend to all positions, by blocks of keys."""
        saved, layout, heads = self.saved, self.layout, self.layout.heads
        seen, length = layout.seen, saved.key.shape[1]
        grad_query = torch.zeros_like(grad)
        step = rows_in_block(saved.key.shape[2])
        for rows in (slice(i, i + step) for i in range(0, length, step)):
            bias = None if layout.key_bias is None else layout.key_bias[b, None, None, None, rows]
            of_query, of_key, of_value = FLASH_BACKWARD(
                _by_head(grad, heads),
                _by_head(saved.queries[b, :seen], heads),
                _by_head(saved.key[b, rows], heads),
                _by_head(saved.value[b, rows], heads),
                _by_head(saved.mixed[b, :seen], heads),
                saved.of_global[b : b + 1],
                0.0,
                False,
                attn_mask=bias,
            )
            grad_query += _by_row(of_query).flatten(1)
            self.key[b, rows] += _by_row(of_key).flatten(1)
            self.value[b, rows] += _by_row(of_value).flatten(1)
        self._queries(grad_query, b, slice(seen))
        self.found["x"][b, :seen].addmm_(grad_query, self.inputs.w_q)

    def _end_sample(self, b: int) -> None:
        """Give the gradients of far keys to global positions and to compressed rows."""
        if self.far_key is None:
            return
        seen = self.layout.seen
        for name, into, grad in zip(
            ("row_key", "row_value"), (self.key, self.value), self.grad_far, strict=True
        ):
            if seen:
                into[b, :seen] += _by_row(grad[:, :, :seen]).flatten(1)
            if name in self.found:
                self.found[name][b] = grad[0, :, seen:]

    def _keys_and_values(self) -> None:
        inputs, found = self.inputs, self.found
        if self.layout.value_factor is not None:
            self.value.unflatten(2, (self.layout.heads, -1)).mul_(self.layout.value_factor)
        x, grad_x = inputs.x.flatten(0, 1), found["x"].flatten(0, 1)
        for side, weight, grad in (
            ("k", inputs.w_k, self.key.flatten(0, 1)),
            ("v", inputs.w_v, self.value.flatten(0, 1)),
        ):
            grad_x.addmm_(grad, weight)
            if self.needed["w_" + side]:
                found["w_" + side] = grad.t() @ x
            if self.needed["b_" + side]:
                found["b_" + side] = grad.sum(0)


def _add_windows(into: Tensor, windows: Tensor, run: _Run, layout: Layout) -> None:
    """Add the gradients of overlapping windows (c, H, keys, D) to their positions (N, H*D)."""
    rows = windows.transpose(1, 2).flatten(2)  # (c, keys, H*D)
    if run.chunks == 1:
        into[run.keys] += rows[0]
        return
    window = layout.window
    for i, part in enumerate(rows.split(window, dim=1)):
        start = run.keys.start + i * window
        into[start : start + run.chunks * window].view(part.shape).add_(part)
