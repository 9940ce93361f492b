"""A linear layer with gradients whose products are those of `gemm.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .gemm import add_transposed_matmul_, linear, matmul, suits_onednn, use_onednn
from .predicate import needs_plain_backward, use_cpu_fast_path


def apply_linear(layer: nn.Linear, x: Tensor, *, with_bias: bool = True) -> Tensor:
    """layer(x) for x (..., C); x W^T without its bias, for an unmodified layer alone."""
    if use_cpu_fast_path(x, layer):
        rows = x.reshape(-1, x.shape[-1])
        # Not `use_onednn`: a pass that is repeated for checkpointing must save the same tensors.
        if suits_onednn(rows, layer.weight):
            bias = layer.bias if with_bias else None
            y: Tensor = _Linear.apply(rows, layer.weight, bias)
            return y.view(*x.shape[:-1], -1)
    if not with_bias:
        return F.linear(x, layer.weight)
    called: Tensor = layer(x)  # of any class, with its hooks
    return called


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
