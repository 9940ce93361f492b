"""The feed-forward half of a layer: W_2 act(W_1 x), act one of gelu, relu, swiglu.

On a CPU it runs in row blocks. The hidden layer is the widest tensor of a Transformer: in inference
one buffer holds it, a block at a time; in training one autograd function does forward and backward
and keeps one copy of it (before the activation) where the plain form keeps two or three. Where
`use_cpu_fast_path` says no, the plain form runs.

Legend: R rows (batch and length folded), M model size, F hidden size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .blocks import linear_into, rows_in_block
from .dropout import drop_, dropout, keep_mask, keep_scale
from .fastpath import needs_plain_backward, plain_gradients, use_cpu_fast_path
from .heads import reset_linear

if TYPE_CHECKING:
    from collections.abc import Callable

Activation = Literal["gelu", "relu", "swiglu"]


def swiglu(hidden: Tensor) -> Tensor:
    """silu(a) * b for hidden = [a, b] (Shazeer 2020): halves the width."""
    gate, value = hidden.chunk(2, dim=-1)
    return F.silu(gate) * value


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "swiglu": swiglu,
}


# For a hidden layer that nothing else needs. (There is no F.gelu_; swiglu halves the width.)
IN_PLACE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_,
    "relu": F.relu_,
    "swiglu": swiglu,
}


class FeedForward(nn.Module):
    """(B, N, dim) -> (B, N, dim), each row on its own.

    The blocked forms read the weights of `w_1` and `w_2`, so they are used while those are plain
    linear layers. `dropout` is applied to the activated hidden layer. With swiglu W_1 has
    2 * ff_dim rows.
    """

    def __init__(
        self,
        *,
        dim: int,
        ff_dim: int,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        checks.positive("ff_dim", ff_dim)
        checks.one_of("activation", activation, get_args(Activation))
        checks.probability("activation_dropout", dropout)
        self.activation: Activation = activation
        self.dropout = dropout
        self.w_1 = nn.Linear(dim, ff_dim * (2 if activation == "swiglu" else 1), bias=bias)
        self.w_2 = nn.Linear(ff_dim, dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_linear(self.w_1, self.w_2)

    def forward(self, x: Tensor) -> Tensor:
        drop = self.dropout if self.training else 0.0
        if not use_cpu_fast_path(x, self.w_1, self.w_2):
            hidden = ACTIVATIONS[self.activation](self.w_1(x))
            return self.w_2(dropout(hidden, drop, training=self.training))
        if not torch.is_grad_enabled() and not drop:
            return self._inferred(x)
        y: Tensor = _BlockedFeedForward.apply(
            x.reshape(-1, x.shape[-1]),
            self.w_1.weight,
            self.w_1.bias,
            self.w_2.weight,
            self.w_2.bias,
            self.activation,
            drop,
        )
        return y.view(x.shape)

    def _inferred(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # (R, M)
        y = torch.empty_like(rows)
        # Twice the rows: here nothing but the hidden layer has to stay in the cache.
        blocks = _blocks(rows.shape[0], self.w_1.out_features, times=2)
        buffer = rows.new_empty(min(rows.shape[0], blocks[0].stop), self.w_1.out_features)
        for block in blocks:
            hidden = buffer[: rows[block].shape[0]]
            linear_into(rows[block], self.w_1.weight, self.w_1.bias, out=hidden)
            active = IN_PLACE_ACTIVATIONS[self.activation](hidden)
            linear_into(active, self.w_2.weight, self.w_2.bias, out=y[block])
        return y.view(x.shape)


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
            grad_active = grad_y[block] @ w_2
            if ctx.drop:
                drop_(grad_active, keep[block], ctx.drop)
            (grad_raw,) = torch.autograd.grad(active, raw, grad_active)
            if grad_w_2 is not None:
                kept = active.detach()
                if ctx.drop:
                    drop_(kept, keep[block], ctx.drop)
                grad_w_2.addmm_(grad_y[block].t(), kept)
            if grad_w_1 is not None:
                grad_w_1.addmm_(grad_raw.t(), x[block])
            if grad_b_1 is not None:
                grad_b_1 += grad_raw.sum(0)
            if grad_x is not None:
                torch.mm(grad_raw, w_1, out=grad_x[block])
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
    """The same by ordinary operations, with the dropout mask that was drawn."""
    active = ACTIVATIONS[activation](F.linear(x, w_1, b_1))
    if drop:
        active = active * keep * keep_scale(drop)
    return F.linear(active, w_2, b_2)


def _blocks(rows: int, width: int, times: int = 1) -> list[slice]:
    size = 2 * times * rows_in_block(width)
    return [slice(i, i + size) for i in range(0, rows, size)]
