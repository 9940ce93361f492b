"""Gradients of parameters that all ranks hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from .collectives import _record

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh


@torch.no_grad()
def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """The mean of every gradient over all ranks of the mesh, after `backward()`.

    For training loops without DDP and FSDP, which do the same during the backward pass. A parameter
    without a gradient on this rank counts as zero, if it has one on another.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    for each in parameters:
        if each.grad is None:
            each.grad = torch.zeros_like(each)
    for dtype in sorted({each.dtype for each in parameters}, key=str):
        grads = [each.grad for each in parameters if each.dtype == dtype and each.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        for name in range(mesh.ndim):
            _record("gradients", flat.nbytes)
            dist.all_reduce(flat, group=mesh.get_group(name))
        flat /= mesh.size()
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view_as(grad))
