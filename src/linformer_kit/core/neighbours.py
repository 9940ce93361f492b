"""What stands beside a row, added to it.

Attention by absolute positions takes long to find "the token before this one", and the rows of a
Linformer are mixtures of all positions. A short convolution over the input shows every row its
neighbours from the first step on, in O(n).

Legend: B batch, N positions, M model size, W width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks


class Neighbours(nn.Module):
    """y_i = x_i + sum_j w_j * x_(i + j - W // 2), each channel by itself. Not in the paper.

    (B, N, M) -> (B, N, M); w (M, W).
    """

    def __init__(self, *, width: int, dim: int) -> None:
        super().__init__()
        _check_width(width)
        self.weight = nn.Parameter(torch.empty(dim, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """At first the neighbours together are as large as the row they are added to."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Padding has to be zero, as what lies beyond both ends is."""
        dim, width = self.weight.shape
        # (B, M, 1, N) is an image with its channels last, for which nothing has to be copied.
        image = x.transpose(1, 2).unsqueeze(2)
        beside = F.conv2d(image, self.weight[:, None, None], padding=(0, width // 2), groups=dim)
        return x + beside.squeeze(2).transpose(1, 2)


def _check_width(width: int) -> None:
    """Odd, so that a row stands in the middle of what it sees."""
    if width < 3 or width % 2 == 0:
        raise ValueError(
            "neighbours must be an odd number of rows from 3 on, the row itself among them, or 0: "
            f"got {width}. Use {max(width, 2) + 1}."
        )


def build_neighbours(width: int, dim: int) -> Neighbours | None:
    """None for a width of 0."""
    checks.whole("neighbours", width)
    return Neighbours(width=width, dim=dim) if width else None
