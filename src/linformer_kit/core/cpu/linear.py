"""A linear layer with gradients whose products are those of `gemm.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .gemm import add_transposed_matmul_, linear, matmul, suits_onednn, use_onednn
from .predicate import needs_plain_backward, use_cpu_fast_path


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """layer(x) for x (..., C)."""
    y = _product(layer, x) if use_cpu_fast_path(x, layer) else None
    if y is None:
        y = layer(x)  # of any class, with its hooks
    return y


def apply_weight(layer: nn.Linear, x: Tensor) -> Tensor:
    """x W^T for x (..., C), without the bias. Only for an unmodified layer."""
    y = _product(layer, x, with_bias=False) if use_cpu_fast_path(x, layer) else None
    return F.linear(x, layer.weight) if y is None else y


def _product(layer: nn.Linear, x: Tensor, *, with_bias: bool = True) -> Tensor | None:
    """x W^T + b by oneDNN, or None where that does not suit.

    Not `use_onednn`: a pass that is repeated for checkpointing must save the same tensors.
    """
    rows = x.reshape(-1, x.shape[-1])
    if not suits_onednn(rows, layer.weight):
        return None
    y: Tensor = _Linear.apply(rows, layer.weight, layer.bias if with_bias else None)
    return y.view(*x.shape[:-1], -1)


class _Linear(torch.autograd.Function):
    """x W^T + b for rows x (R, C). Saves what the gradients need, as nn.Linear does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        need_x, need_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if need_weight else None, weight if need_x else None)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, (x, weight) = grads[0], ctx.saved_tensors
        plain = needs_plain_backward(grad)
        of_x = of_weight = None
        if weight is not None:
            of_x = grad @ weight if plain else matmul(grad, weight)
        if x is not None:
            of_weight = x.new_zeros(grad.shape[1], x.shape[1])
            if plain or not use_onednn(grad, of_weight):
                of_weight = grad.t() @ x
            else:
                add_transposed_matmul_(of_weight, grad, x)
        return of_x, of_weight, grad.sum(0) if ctx.needs_input_grad[2] else None
