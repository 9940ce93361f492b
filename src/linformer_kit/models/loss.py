"""The loss of a language model without its n x V logits.

    loss = sum over labelled rows of -(1 - e) log p[label] - e mean_v log p[v], p = softmax(W h + b)

for label smoothing e. The logits of some rows are made, give their part of the loss and of the
gradients, and are forgotten: with R rows at a time R x V numbers instead of n x V. As the gradient
of a sum of losses is known when the loss is, it is computed along with it, so nothing is computed
twice: three products, as in the plain form. A gradient of the gradient, and the transforms of
torch.func, use the plain form.

Legend: N rows of all positions, R rows of one chunk, M model size, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..core.cpu.gemm import add_transposed_matmul_, linear, matmul
from ..core.cpu.predicate import (
    is_unmodified_linear,
    needs_plain_backward,
    plain_gradients,
    under_transform,
)
from ..core.numerics import at_least_float32

if TYPE_CHECKING:
    from collections.abc import Callable

IGNORED = -100  # a label that asks for nothing


def language_model_loss(
    hidden: Tensor,
    head: nn.Module,
    labels: Tensor,
    *,
    chunk: int,
    smoothing: float = 0.0,
    num_items: Tensor | int | None = None,
) -> Tensor:
    """The mean cross-entropy of head(hidden) where there are labels; over `num_items` if given.

    hidden (..., M), labels (...) with -100 for none. `chunk` rows at a time; 0 for all at once.
    Without any label the loss is zero.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])  # (N, M)
    labels = labels.reshape(-1).to(rows.device)
    which = (labels != IGNORED).nonzero()[:, 0]  # the labelled rows
    if chunk == 0 or which.shape[0] <= chunk or under_transform():
        total = _total(head(rows[which]), labels[which], smoothing)
    elif isinstance(head, nn.Linear) and is_unmodified_linear(head):
        total = _ChunkedLoss.apply(
            rows, head.weight, head.bias, labels, which, smoothing, chunk, _autocast(rows)
        )
    else:
        total = _in_checkpoints(rows, head, labels, which, smoothing, chunk)
    if num_items is None:
        return total / max(which.shape[0], 1)
    return total / num_items


def logits_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.0,
    num_items: Tensor | int | None = None,
) -> Tensor:
    """The same of logits (..., V) that are there already."""
    return language_model_loss(
        logits, nn.Identity(), labels, chunk=0, smoothing=smoothing, num_items=num_items
    )


def _total(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The sum of the losses of logits (R, V), in float32 at least."""
    return F.cross_entropy(
        at_least_float32(logits), labels, reduction="sum", label_smoothing=smoothing
    )


def _autocast(rows: Tensor) -> torch.dtype | None:
    """The type that products have here, if autocast decides it."""
    kind = rows.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _in_checkpoints(
    rows: Tensor,
    head: Callable[[Tensor], Tensor],
    labels: Tensor,
    which: Tensor,
    smoothing: float,
    chunk: int,
) -> Tensor:
    """For heads that are more than a matrix: logits are made again for the gradient."""

    def part(here: Tensor) -> Tensor:
        return _total(head(rows[here]), labels[here], smoothing)

    parts = [checkpoint(part, here, use_reentrant=False) for here in which.split(chunk)]
    return torch.stack(parts).sum()


class _ChunkedLoss(torch.autograd.Function):
    """The sum of the losses of labelled rows, and its gradients, a chunk of rows at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        which: Tensor,
        smoothing: float,
        chunk: int,
        product: torch.dtype | None,
    ) -> Tensor:
        need_rows, need_weight, need_bias = ctx.needs_input_grad[:3]
        product = rows.dtype if product is None else product
        matrix = weight.to(product)  # (V, M)
        offset = None if bias is None else bias.to(product)
        wide = torch.promote_types(product, torch.float32)
        total = torch.zeros((), dtype=wide, device=rows.device)
        grad_rows = torch.zeros_like(rows) if need_rows else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if need_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if bias is not None and need_bias else None
        with torch.autocast(rows.device.type, enabled=False):
            for here in which.split(chunk):
                some = rows[here].to(product)  # (R, M)
                logits = at_least_float32(linear(some, matrix, offset))  # (R, V)
                total += F.cross_entropy(
                    logits, labels[here], reduction="sum", label_smoothing=smoothing
                )
                if not (need_rows or need_weight or need_bias):
                    continue
                grad = _gradient_of_logits(logits, labels[here], smoothing)  # (R, V)
                if grad_bias is not None:
                    grad_bias += grad.sum(0)
                grad = grad.to(product)
                if grad_weight is not None:
                    _add_product(grad_weight, grad, some)
                if grad_rows is not None:
                    grad_rows[here] = matmul(grad, matrix).to(rows.dtype)
        ctx.save_for_backward(
            grad_rows,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
            rows,
            weight,
            bias,
            labels[which],
            which,
        )
        ctx.smoothing, ctx.product = smoothing, product
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *known, rows, weight, bias, labels, which = ctx.saved_tensors
        product = ctx.product

        def plain(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            bias = None if bias is None else bias.to(product)
            logits = F.linear(rows[which].to(product), weight.to(product), bias)
            return _total(logits, labels, ctx.smoothing)

        if needs_plain_backward(grads[0]):
            needed = ctx.needs_input_grad[:3]
            found = plain_gradients(plain, (rows, weight, bias), grads[0], needed)
        else:
            found = tuple(None if grad is None else grad * grads[0] for grad in known)
        return (*found, None, None, None, None, None)


def _gradient_of_logits(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """softmax(logits) - target, in the memory of the logits."""
    torch.softmax(logits, -1, out=logits)
    if smoothing:
        logits -= smoothing / logits.shape[-1]
    row = torch.arange(labels.shape[0], device=labels.device)
    logits[row, labels] -= 1.0 - smoothing
    return logits


def _add_product(total: Tensor, grad: Tensor, rows: Tensor) -> None:
    """Add grad^T rows to total (V, M), in the type of total."""
    if grad.dtype == total.dtype:
        add_transposed_matmul_(total, grad, rows)
    else:
        total += grad.t() @ rows
