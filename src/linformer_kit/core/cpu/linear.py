"""A linear layer with gradients whose products are those of `gemm.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .gemm import add_transposed_matmul, linear, matmul, use_onednn
from .predicate import needs_plain_backward, plain_gradients, use_cpu_fast_path


def apply_linear(layer: nn.Linear, x: Tensor, *, with_bias: bool = True) -> Tensor:
    """layer(x) for x (..., C); x W^T without its bias, for an unmodified layer alone."""
    if use_cpu_fast_path(x, layer):
        weight, bias = layer.weight, layer.bias if with_bias else None
        rows = x.reshape(-1, x.shape[-1])
        if use_onednn(rows.shape[0], weight):
            y: Tensor = (_Linear.apply if torch.is_grad_enabled() else linear)(rows, weight, bias)
            return y.view(*x.shape[:-1], -1)
    if not with_bias:
        return F.linear(x, layer.weight)
    called: Tensor = layer(x)  # of any class, with its hooks
    return called


class _Linear(torch.autograd.Function):
    """x W^T + b for rows x (R, C)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, inputs, needed = grads[0], ctx.saved_tensors, ctx.needs_input_grad
        if needs_plain_backward(grad):
            return plain_gradients(F.linear, inputs, grad, needed)
        x, weight, _ = inputs
        need_x, need_weight, need_bias = needed
        return (
            matmul(grad, weight) if need_x else None,
            add_transposed_matmul(torch.zeros_like(weight), grad, x) if need_weight else None,
            grad.sum(0) if need_bias else None,
        )
