"""E x with a backward pass that adds its part of the gradient of x in place.

In self-attention x has two readers: the compression E x and the queries. Autograd would allocate
both gradients of x and add them; here the part of E x is accumulated into the part of the queries.
This saves up to 7% of a training step of an attention layer (dim 512, n 512 to 4,096, one thread).

The aliasing contract, for this file and its callers: `matmul_sharing_gradient` returns x as well.
That returned x must have exactly one reader, and the backward pass of the reader must make a new
tensor, because that tensor is written to. The query projection of `LinformerAttention.attend` on
the CPU fast path is such a reader; `can_share_gradient` checks that it is unmodified.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..numerics import batched_matmul
from .gemm import add_matmul_, add_matmul_columns_
from .predicate import needs_plain_backward, use_cpu_fast_path


def can_share_gradient(x: Tensor, matrix: Tensor, reader: tuple[nn.Module, ...]) -> bool:
    """`reader`: the linear layers that are going to read x, applied by the CPU fast path."""
    return (
        torch.is_grad_enabled()
        and x.requires_grad
        and matrix.dim() == 2
        and matrix.dtype == x.dtype
        and use_cpu_fast_path(x, *reader)
    )


def matmul_sharing_gradient(x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, S, C), E x (B, R, C) and E 1 (R) for the matrix E (R, S)."""
    x, rows, sums = _MatmulSharingGradient.apply(x, matrix)
    return x, rows, sums


class _MatmulSharingGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(x, matrix)
        ctx.set_materialize_grads(False)
        return x.view_as(x), batched_matmul(matrix, x), matrix.sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        x, matrix = ctx.saved_tensors
        grad_x, grad_rows, grad_sums = grads
        if grad_rows is None:
            return grad_x, None if grad_sums is None else grad_sums[:, None].expand_as(matrix)
        if needs_plain_backward(grad_rows):
            more = batched_matmul(matrix.T, grad_rows)
            grad_x = more if grad_x is None else grad_x + more
            grad_matrix = (grad_rows @ x.mT).sum(0)
            return grad_x, grad_matrix if grad_sums is None else grad_matrix + grad_sums[:, None]
        if not ctx.needs_input_grad[0]:
            grad_x = None
        elif grad_x is None:
            grad_x = batched_matmul(matrix.T, grad_rows)
        else:
            for sample, rows in zip(grad_x, grad_rows, strict=True):
                add_matmul_(sample, matrix.T, rows)
        if not ctx.needs_input_grad[1]:
            return grad_x, None
        if grad_sums is None:
            grad_matrix = torch.zeros_like(matrix)
        else:
            grad_matrix = (
                grad_sums[:, None].expand_as(matrix).clone(memory_format=torch.contiguous_format)
            )
        for sample, rows in zip(x, grad_rows, strict=True):
            add_matmul_columns_(grad_matrix, rows, sample)
        return grad_x, grad_matrix
