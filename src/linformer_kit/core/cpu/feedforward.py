"""The feed-forward part in blocks of rows.

The hidden layer is the widest tensor of a Transformer. In inference one buffer holds it for one
block at a time; in training one autograd function keeps a single copy of it (before the
activation), where the plain path keeps two or three.

Legend: R rows (batch and length merged), M model size, F hidden size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..activations import ACTIVATIONS, Activation, swiglu
from .allocator import reuse_freed_blocks
from .blocks import rows_in_block
from .dropout import drop_, keep_mask, keep_scale
from .gemm import activated_linear, add_transposed_matmul_, linear_into, matmul, matmul_into
from .predicate import needs_plain_backward, plain_gradients

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

# For a hidden layer that nothing else reads. (There is no F.gelu_; swiglu halves the width.)
IN_PLACE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "gelu_tanh": lambda x: torch.ops.aten.gelu_(x, approximate="tanh"),
    "relu": F.relu_,
    "swiglu": swiglu,
}


def feed_forward_in_blocks(
    x: Tensor, w_1: nn.Linear, w_2: nn.Linear, activation: Activation, drop: float
) -> Tensor:
    """W_2 drop(act(W_1 x)): x (..., M) -> (..., M)."""
    rows = x.reshape(-1, x.shape[-1])  # (R, M)
    weights = w_1.weight, w_1.bias, w_2.weight, w_2.bias
    if torch.is_grad_enabled() or drop:
        y: Tensor = _BlockedFeedForward.apply(rows, *weights, activation, drop)
    else:
        y = _inference(rows, *weights, activation)
    return y.view(x.shape)


def _inference(
    rows: Tensor,
    w_1: Tensor,
    b_1: Tensor | None,
    w_2: Tensor,
    b_2: Tensor | None,
    activation: Activation,
) -> Tensor:
    y = torch.empty_like(rows)
    # Twice the rows: here only the hidden layer has to stay in the cache.
    blocks = _blocks(rows.shape[0], w_1.shape[0], times=2)
    buffer = rows.new_empty(min(rows.shape[0], blocks[0].stop), w_1.shape[0])
    for block in blocks:
        hidden = buffer[: rows[block].shape[0]]
        active = activated_linear(
            rows[block], w_1, b_1, activation, IN_PLACE_ACTIVATIONS[activation], buffer=hidden
        )
        linear_into(active, w_2, b_2, out=y[block])
    return y


class _BlockedFeedForward(torch.autograd.Function):
    """y = W_2 drop(act(W_1 x)), a block of rows at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w_1: Tensor,
        b_1: Tensor | None,
        w_2: Tensor,
        b_2: Tensor | None,
        activation: Activation,
        drop: float,
    ) -> Tensor:
        rows = x.shape[0]
        y = x.new_empty(rows, w_2.shape[0])
        hidden = x.new_empty(rows, w_1.shape[0])
        keep = x.new_empty(rows if drop else 0, w_2.shape[1], dtype=torch.bool)
        for block in _blocks(rows, w_1.shape[0]):
            linear_into(x[block], w_1, b_1, out=hidden[block])
            active = ACTIVATIONS[activation](hidden[block])
            if drop:
                keep[block] = keep_mask(tuple(active.shape), drop)
                drop_(active, keep[block], drop)
            linear_into(active, w_2, b_2, out=y[block])
        ctx.activation, ctx.drop = activation, drop
        ctx.save_for_backward(x, w_1, b_1, w_2, b_2, hidden, keep)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_y = grads[0]
        *inputs, hidden, keep = ctx.saved_tensors
        if needs_plain_backward(grad_y):
            return plain_gradients(
                lambda *tensors: _plain(
                    *tensors, activation=ctx.activation, keep=keep, drop=ctx.drop
                ),
                tuple(inputs),
                grad_y,
                ctx.needs_input_grad,
            )
        x, w_1, _, w_2, _ = inputs
        need_x, need_w_1, need_b_1, need_w_2, need_b_2 = ctx.needs_input_grad[:5]
        grad_x = torch.empty_like(x) if need_x else None
        grad_w_1 = torch.zeros_like(w_1) if need_w_1 else None
        grad_b_1 = w_1.new_zeros(w_1.shape[0]) if need_b_1 else None
        grad_w_2 = torch.zeros_like(w_2) if need_w_2 else None
        for block in _blocks(x.shape[0], w_1.shape[0]):
            with torch.enable_grad():
                raw = hidden[block].detach().requires_grad_()
                active = ACTIVATIONS[ctx.activation](raw)
            grad_active = matmul(grad_y[block], w_2)
            if ctx.drop:
                drop_(grad_active, keep[block], ctx.drop)
            (grad_raw,) = torch.autograd.grad(active, raw, grad_active)
            if grad_w_2 is not None:
                kept = active.detach()
                if ctx.drop:
                    drop_(kept, keep[block], ctx.drop)
                add_transposed_matmul_(grad_w_2, grad_y[block], kept)
            if grad_w_1 is not None:
                add_transposed_matmul_(grad_w_1, grad_raw, x[block])
            if grad_b_1 is not None:
                grad_b_1 += grad_raw.sum(0)
            if grad_x is not None:
                matmul_into(grad_raw, w_1, out=grad_x[block])
        grad_b_2 = grad_y.sum(0) if need_b_2 else None
        return grad_x, grad_w_1, grad_b_1, grad_w_2, grad_b_2, None, None


def _plain(
    x: Tensor,
    w_1: Tensor,
    b_1: Tensor | None,
    w_2: Tensor,
    b_2: Tensor | None,
    *,
    activation: Activation,
    keep: Tensor,
    drop: float,
) -> Tensor:
    """The same by differentiable operations, with the dropout mask of the forward pass."""
    active = ACTIVATIONS[activation](F.linear(x, w_1, b_1))
    if drop:
        active = active * keep * keep_scale(drop)
    return F.linear(active, w_2, b_2)


def _blocks(rows: int, width: int, times: int = 1) -> list[slice]:
    reuse_freed_blocks()
    size = 2 * times * rows_in_block(width)
    return [slice(i, i + size) for i in range(0, rows, size)]
