"""Matrix products without hidden copies, the precision of sums, interpolation of rows."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cpu.gemm import linear_samples_into, matmul_samples
from .cpu.predicate import use_cpu_fast_path

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def at_least_float32(x: Tensor) -> Tensor:
    """x in float32, or in its own type if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Turns autocast off: in float16 sums and squares would overflow. The meta device has none."""
    if device.type == "meta":
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def exact_matmul(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in their own precision, also under autocast."""
    with no_autocast(a.device):
        return a @ b


def batched_matmul(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix (R, S) or (B, R, S) times x (B, S, C) -> (B, R, C).

    An explicit bmm: for a matrix without a batch, `@` would make a transposed copy of x.
    """
    if matrix.dim() == 3:
        return torch.bmm(matrix, x)
    # Contiguous rows alone: oneDNN would compile a kernel for every length of transposed ones.
    if not torch.is_grad_enabled() and x.is_contiguous() and use_cpu_fast_path(x):
        return matmul_samples(matrix, x)
    return torch.bmm(matrix.expand(x.shape[0], -1, -1), x)


def per_head_matmul(rows: Tensor, weight: Tensor) -> Tensor:
    """rows (B, H, R, C) times weight (H, C, M) -> (B, H, R, M).

    The batch is merged with the rows: `@` would copy the weight for each sample.
    """
    batch, _, count, _ = rows.shape
    merged = rows.transpose(0, 1).flatten(1, 2)  # (H, B*R, C)
    if not torch.is_grad_enabled() and use_cpu_fast_path(merged):
        product = merged.new_empty(*merged.shape[:2], weight.shape[2])
        linear_samples_into(merged, weight.mT, None, out=product)
    else:
        product = torch.bmm(merged, weight)
    return product.unflatten(1, (batch, count)).transpose(0, 1)


def interpolate_keeping_norm(rows: Tensor, length: int) -> Tensor:
    """rows (..., N) interpolated linearly to (..., length), each row scaled to its old norm.

    Without a graph; a parameter gives a parameter.
    """
    wide = at_least_float32(rows.detach()).flatten(0, -2)[None]
    new = F.interpolate(wide, size=length, mode="linear", align_corners=True)
    scale = wide.norm(dim=-1, keepdim=True) / new.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    new = (new * scale).to(rows.dtype).view(*rows.shape[:-1], length)
    return nn.Parameter(new, rows.requires_grad) if isinstance(rows, nn.Parameter) else new
