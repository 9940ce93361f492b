"""Learned projections that start as the means of segments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..core.attention import LinformerAttention
from ..core.projection import LinearProjection
from ..core.segments import ConvProjection
from .swapped import SwappedAttention

if TYPE_CHECKING:
    from ..core.projection_kinds import Sharing


def default_sharing(projection: str) -> Sharing:
    """`pool` has weights of a head's size for each head; a matrix E is one for all heads."""
    return "none" if projection == "pool" else "kv"


def start_from_segment_means(model: torch.nn.Module) -> None:
    """Let every learned E and filter start as the means of segments, each counted as its size.
    `pool` does so by itself.
    """
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, ConvProjection):
                module.weight.fill_(1.0 / module.width)
            elif isinstance(module, LinearProjection):
                rows, length = module.weight.shape[-2:]
                segment = torch.arange(length) // -(-length // rows)
                matrix = (segment == torch.arange(rows)[:, None]).to(module.weight.dtype)
                module.weight.copy_(matrix / matrix.sum(1, keepdim=True).clamp_min(1.0))
            elif (
                isinstance(module, LinformerAttention | SwappedAttention)
                and module.row_bias is not None
            ):
                if module.kind == "dynamic" or not module.k or not module.max_length:
                    continue
                module.row_bias.fill_(math.log(math.ceil(module.max_length / module.k)))
