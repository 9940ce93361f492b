"""Change the max_length of a trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import checks
from .attention import LinformerAttention
from .positions import LearnedPositions
from .projection import Projection
from .projection_kinds import NEED_MAX_LENGTH

if TYPE_CHECKING:
    from torch import nn


def resize_max_length(module: nn.Module, max_length: int) -> nn.Module:
    """Give every projection and position table in `module` a new max_length, by interpolation.

    Each row of E is interpolated and keeps its norm, which keeps the scale of compressed rows.
    Segments become wider or narrower; k stays. Works in place, so create the optimizer afterwards.
    Fine-tune at the new length: interpolation is only an initialisation.

    Returns the same module.
    """
    checks.positive("max_length", max_length)
    parts = [
        m
        for m in module.modules()
        if isinstance(m, LearnedPositions)
        or (isinstance(m, Projection) and m.max_length is not None)
    ]
    for part in parts:
        if isinstance(part, Projection) and part.k > max_length:
            raise ValueError(
                f"max_length must be at least k={part.k}: got {max_length}. "
                "Build a model with a smaller k instead."
            )
    if not parts:
        raise ValueError(
            f"nothing in {type(module).__name__} depends on max_length: only the projections "
            f"{', '.join(NEED_MAX_LENGTH)} and learned positions do."
        )
    for part in parts:
        part.resize(max_length)
    for layer in module.modules():
        if isinstance(layer, LinformerAttention):
            layer.max_length = max_length
    return module
