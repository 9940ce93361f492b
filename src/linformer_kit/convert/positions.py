"""Position tables for inputs longer than a pretrained model has read."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import checks

Extension = Literal["copy", "interpolate", "spread"]


def extend_positions(table: Tensor, length: int, how: Extension = "copy") -> Tensor:
    """A table (N, M) for `length` positions.

    copy: the table again and again, as Longformer does: positions below N stay as they are.
    interpolate: N positions stretched to `length`, linearly.
    spread: as interpolate, each row repeated: position i has row i * N // length (E5-base-4k).

    A shorter length takes the first rows.
    """
    checks.one_of("extension", how, get_args(Extension))
    rows = table.shape[0]
    if length <= rows:
        return table[:length].clone()
    if how == "copy":
        return table.repeat(-(-length // rows), 1)[:length].clone()
    if how == "spread":
        return table[torch.arange(length) * rows // length]
    stretched = F.interpolate(table.t()[None].float(), length, mode="linear", align_corners=True)
    return stretched[0].t().contiguous().to(table.dtype)
