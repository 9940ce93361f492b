"""The backward pass of attention with a window on a CPU, per block of chunks.

The backward pass of the kernel is called for the near and for the far keys with the merged output
and log-sum-exp: each call then computes the weights of the whole softmax for its own keys, so that
the sum of both is the gradient of the whole.

Legend: B batch, N positions, C chunks, W window, g global positions, R compressed rows, L = g + R,
H heads, D head size, M model size; r rows, c chunks of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import rows_in_block
from .flash import FLASH_BACKWARD
from .gemm import add_matmul_, add_transposed_matmul_, matmul, matmul_into
from .window_blocks import (
    Block,
    Inputs,
    Layout,
    Run,
    Saved,
    by_head,
    by_row,
    chunk_blocks,
    far_bias_of,
    far_keys_of,
    far_shift_of,
    window_bias,
    windows,
)


class WindowGradients:
    """The backward pass: the gradients of `Inputs` by name, accumulated block by block."""

    def __init__(
        self, inputs: Inputs, saved: Saved, layout: Layout, needed: dict[str, bool]
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
            for block in chunk_blocks(length, layout, width):
                upstream = grad_y[b, block.rows].contiguous()
                if "w_o" in found:
                    mixed = self.saved.mixed[b, block.rows]
                    add_transposed_matmul_(found["w_o"], upstream, mixed)
                grad = matmul(upstream, inputs.w_o)  # (r, H*D)
                ending = max(0, min(layout.seen, block.rows.stop) - block.rows.start)
                if ending:  # these rows attend to all positions: `_global_queries`
                    of_global[block.rows.start : block.rows.start + ending] = grad[:ending]
                    grad[:ending] = 0.0
                grad_query = self._block(grad, b, block)
                self._queries(grad_query, b, block.rows)
                matmul_into(grad_query, inputs.w_q, out=found["x"][b, block.rows])
            if layout.seen:
                self._global_queries(of_global, b)
            self._end_sample(b)
        self._keys_and_values()
        if self.needed["b_o"]:
            found["b_o"] = grad_y.sum((0, 1))
        return found

    def _begin_sample(self, b: int) -> None:
        key, value = self.saved.key[b], self.saved.value[b]
        self.far = far_keys_of(self.inputs, key, value, self.layout, b)
        self.grad_far = None if self.far is None else [torch.zeros_like(each) for each in self.far]

    def _block(self, grad: Tensor, b: int, block: Block) -> Tensor:
        """The gradient of the queries (r, H*D) from that of the outputs of the heads."""
        heads, layout = self.layout.heads, self.layout
        queries, out, sums = (
            rows[b, block.rows]
            for rows in (self.saved.queries, self.saved.mixed, self.saved.logsumexp)
        )
        grad_query = None
        if self.far is not None and self.grad_far is not None:
            shift = far_shift_of(layout, b, block)
            # As if the shift were part of the scores: exp(score + shift - l).
            of_far = sums if shift is None else (sums - shift).to(sums.dtype)
            bias = far_bias_of(layout, self.inputs.head_bias, b, block)
            logsumexp = of_far.t()[None]  # (1, H, r)
            of_query, of_key, of_value = FLASH_BACKWARD(
                *(by_head(rows, heads) for rows in (grad, queries)),
                *self.far,
                by_head(out, heads),
                logsumexp,
                0.0,
                False,
                attn_mask=bias,
            )
            self.grad_far[0].add_(of_key)
            self.grad_far[1].add_(of_value)
            if "head_bias" in self.found:
                self._head_bias(self.far, grad, queries, out, of_value, logsumexp[0], bias)
            grad_query = by_row(of_query).flatten(1)
        for run in block.runs:
            if run.keys.start >= run.keys.stop:
                continue
            of_query, of_key, of_value = FLASH_BACKWARD(
                *(by_head(rows[run.rows], heads, run.chunks) for rows in (grad, queries)),
                windows(self.saved.key[b], run, layout),
                windows(self.saved.value[b], run, layout),
                by_head(out[run.rows], heads, run.chunks),
                sums[run.rows].view(run.chunks, -1, heads).transpose(1, 2),
                0.0,
                False,
                attn_mask=window_bias(layout, b, run),
            )
            if grad_query is None:
                grad_query = torch.empty_like(grad)
            rows = grad_query[run.rows]
            of_query = by_row(of_query).flatten(1)
            rows.copy_(of_query) if self.far is None else rows.add_(of_query)
            _add_windows(self.key[b], of_key, run, layout)
            _add_windows(self.value[b], of_value, run, layout)
        assert grad_query is not None
        return grad_query

    def _head_bias(
        self,
        far: tuple[Tensor, Tensor],
        grad: Tensor,
        queries: Tensor,
        out: Tensor,
        grad_value: Tensor,
        logsumexp: Tensor,
        bias: Tensor | None,
    ) -> None:
        """sum_i P_ij (dP_ij - dot_i), with sum_i P_ij dP_ij = dV_j . V_j."""
        assert bias is not None
        heads = self.layout.heads
        query, key = by_head(queries, heads)[0], far[0][0]  # (H, r, D), (H, L, D)
        scale = query.shape[-1] ** -0.5
        weights = torch.baddbmm(bias[0], query, key.mT, alpha=scale)  # (H, r, L)
        weights = weights.sub_(logsumexp[..., None]).exp_()
        dot = (grad * out).view(-1, heads, query.shape[-1]).sum(-1).t()  # (H, r)
        total = (grad_value * far[1]).sum(-1)[0]
        self.found["head_bias"].add_(total - (dot[:, None] @ weights)[:, 0])

    def _queries(self, grad_query: Tensor, b: int, rows: slice) -> None:
        if "w_q" in self.found:
            add_transposed_matmul_(self.found["w_q"], grad_query, self.inputs.x[b, rows])
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
                by_head(grad, heads),
                by_head(saved.queries[b, :seen], heads),
                by_head(saved.key[b, rows], heads),
                by_head(saved.value[b, rows], heads),
                by_head(saved.mixed[b, :seen], heads),
                saved.of_global[b : b + 1],
                0.0,
                False,
                attn_mask=bias,
            )
            grad_query += by_row(of_query).flatten(1)
            self.key[b, rows] += by_row(of_key).flatten(1)
            self.value[b, rows] += by_row(of_value).flatten(1)
        self._queries(grad_query, b, slice(seen))
        self.found["x"][b, :seen].addmm_(grad_query, self.inputs.w_q)

    def _end_sample(self, b: int) -> None:
        """Give the gradients of far keys to global positions and to compressed rows."""
        if self.grad_far is None:
            return
        seen = self.layout.seen
        for name, into, grad in zip(
            ("row_key", "row_value"), (self.key, self.value), self.grad_far, strict=True
        ):
            if seen:
                into[b, :seen] += by_row(grad[:, :, :seen]).flatten(1)
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
            add_matmul_(grad_x, grad, weight)
            if self.needed["w_" + side]:
                found["w_" + side] = torch.zeros_like(weight)
                add_transposed_matmul_(found["w_" + side], grad, x)
            if self.needed["b_" + side]:
                found["b_" + side] = grad.sum(0)


def _add_windows(into: Tensor, windows: Tensor, run: Run, layout: Layout) -> None:
    """Add the gradients of overlapping windows (c, H, keys, D) to their positions (N, H*D)."""
    rows = windows.transpose(1, 2).flatten(2)  # (c, keys, H*D)
    if run.chunks == 1:
        into[run.keys] += rows[0]
        return
    window = layout.window
    for i, part in enumerate(rows.split(window, dim=1)):
        start = run.keys.start + i * window
        into[start : start + run.chunks * window].view(part.shape).add_(part)
