"""The scale of compressed rows that lack positions (`keep_scale`)."""

from __future__ import annotations

import torch
from torch import Tensor

_MIN_SHARE = 1e-9  # of the squared norm of a row
MAX_SCALE = _MIN_SHARE**-0.5  # 31,623: a float16, and above the square root of any max_length


def visible_scale(total: Tensor, visible: Tensor) -> Tensor:
    """min(|row| / |visible part of the row|, MAX_SCALE), from the squares of the two norms.

    It keeps the variance of a sum that lacks positions. At the bound the row is MAX_SCALE times its
    visible part, so a visible part of exactly zero gives zero, and the gradient is finite. A row of
    zeros has the scale 1.
    """
    floor = total * _MIN_SHARE + torch.finfo(total.dtype).tiny
    ratio = total / torch.maximum(visible, floor)
    return ratio.masked_fill(total == 0, 1.0).sqrt()
