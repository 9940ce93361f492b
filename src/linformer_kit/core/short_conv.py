"""A short convolution over the input, added to it.

With absolute positions attention needs many steps to learn "the token before this one", and the
compressed rows of a Linformer mix all positions. A short depthwise convolution gives every row its
neighbours from the first step on, in O(n).

Legend: B batch, N positions, M model size, W width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks


class ShortConv(nn.Module):
    """y_i = x_i + sum_j w_j * x_(i + j - W // 2), each channel separately. Not in the paper.

    (B, N, M) -> (B, N, M); w (M, W). Padded rows of x must be zero.
    """

    def __init__(self, *, width: int, dim: int) -> None:
        super().__init__()
        _check_width(width)
        self.weight = nn.Parameter(torch.empty(dim, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """At first the convolution has the variance of the row that it is added to."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        dim, width = self.weight.shape
        # (B, M, 1, N) is an image in channels-last format, so that nothing has to be copied.
        image = x.transpose(1, 2).unsqueeze(2)
        mixed = F.conv2d(image, self.weight[:, None, None], padding=(0, width // 2), groups=dim)
        return x + mixed.squeeze(2).transpose(1, 2)


def _check_width(width: int) -> None:
    """Odd, so that the window of a row is centred on it."""
    if width < 3 or width % 2 == 0:
        raise ValueError(
            "neighbours must be an odd number of rows from 3 on, including the row itself, or 0: "
            f"got {width}. Use {max(width, 2) + 1}."
        )


def build_short_conv(width: int, dim: int) -> ShortConv | None:
    """None for a width of 0."""
    checks.whole("neighbours", width)
    return ShortConv(width=width, dim=dim) if width else None
