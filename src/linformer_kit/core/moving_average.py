"""Moving averages of the input in both directions, added to it, in O(n).

Attention weighs positions by what they are and normalises the weights, so it cannot count: how deep
a bracket is nested, how many events came before. A sum that decays over a learned time can, and
gives every row a state of what is before and after it. Each channel is one exponential moving
average, as in Mega (Ma et al. 2022), here without its hidden dimensions and without a norm of the
weights: a time much longer than the input is a plain count. Not in Linformer's paper.

Legend: B batch, N positions, M model size, C chunks, W width of a chunk.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from .cpu.linear import apply_linear
from .numerics import at_least_float32, no_autocast
from .plain_sdpa import zero_padding

if TYPE_CHECKING:
    from torch import Tensor

WIDTH = 64
LEVELS = 4  # chunks of chunks in a graph for any length: up to 64 ** 4 positions
SHORTEST, LONGEST = 1.0, 4096.0  # decay times at the start, in positions
LEAST_LOG_TIME = -3.0  # below a time of 1/20 of a position nothing but the row itself is left


class MovingAverage(nn.Module):
    """y = x + W_2 gelu(norm(s)): (B, N, M) -> (B, N, M).

        s_ic = sum_(j <= i) exp(-(i - j) / t_c) u_jc,   u = W_1 x,

    for the first half of the channels; the other half sums over j >= i. The decay times t_c are
    learned and start between 1 and 4,096 positions. Padded rows of x must be zero; they add nothing
    to the sums, and positions keep their distances.
    """

    def __init__(self, *, dim: int, bias: bool = True, norm_eps: float = 1e-5) -> None:
        super().__init__()
        if dim < 2:
            raise ValueError(
                "moving_average needs a channel for each direction, so a width of at least 2: got "
                f"{dim}. Use a wider model, or moving_average=False."
            )
        self.w_1 = nn.Linear(dim, dim, bias=bias)
        self.w_2 = nn.Linear(dim, dim, bias=bias)
        self.norm = nn.LayerNorm(dim, eps=norm_eps)
        self.log_time = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Times are spread evenly on a logarithmic scale in each direction."""
        for layer in (self.w_1, self.w_2, self.norm):
            layer.reset_parameters()
        with torch.no_grad():
            self.log_time.copy_(self.initial_log_time())

    def initial_log_time(self) -> Tensor:
        """(M,), the channels that look back first."""
        ends, dim = (math.log(SHORTEST), math.log(LONGEST)), self.log_time.shape[0]
        return torch.cat([torch.linspace(*ends, part) for part in (dim // 2, dim - dim // 2)])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.added(x, self.sums(self.inputs(x, mask)), mask)

    def inputs(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """u = W_1 x, zero at padding, where the bias of W_1 is not."""
        return zero_padding(apply_linear(self.w_1, x), mask)

    def sums(self, u: Tensor) -> Tensor:
        """s of u (B, N, M): (B, N, M), in float32 at least."""
        later, rate = self.log_time.shape[0] // 2, self.rate()
        u = at_least_float32(u)
        with no_autocast(u.device):  # few bits cannot count far
            before = decayed_sum(u[..., :later], rate[:later])
            after = decayed_sum(u[..., later:].flip(1), rate[later:]).flip(1)
        return torch.cat((before, after), dim=2)

    def carried(self, around: Tensor, length: int) -> Tensor:
        """What is to be added to the sums of a part of a sequence: (B, length, M).

        `around` (B, M): the sums at the position before the part, of channels that look back, and
        at the position after it, of the others.
        """
        place = torch.arange(1, length + 1, device=around.device)[:, None]
        distance = torch.where(self.looks_back(), place, place.flip(0))  # (N, M)
        return around[:, None] * torch.exp(-self.rate() * distance)

    def ends(self, sums: Tensor) -> Tensor:
        """The sums at the last position, and for the other direction at the first: (B, M)."""
        later = self.log_time.shape[0] // 2
        return torch.cat((sums[:, -1, :later], sums[:, 0, later:]), dim=1)

    def looks_back(self) -> Tensor:
        """Which channels sum what is before a row: (M,) bool, the first half."""
        count = self.log_time.shape[0]
        return torch.arange(count, device=self.log_time.device) < count // 2

    def rate(self) -> Tensor:
        """1 / t (M,), in float32 at least."""
        return torch.exp(-at_least_float32(self.log_time).clamp(min=LEAST_LOG_TIME))

    def added(self, x: Tensor, sums: Tensor, mask: Tensor | None) -> Tensor:
        """x + W_2 gelu(norm(s)), zero at padding."""
        normed = self.norm(sums.to(self.norm.weight.dtype))
        return zero_padding(x + apply_linear(self.w_2, F.gelu(normed)), mask)


def decayed_sum(u: Tensor, rate: Tensor) -> Tensor:
    """s_i = sum_(j <= i) exp(-rate (i - j)) u_j: u (B, N, M), rate (M,) -> (B, N, M).

    In chunks: the sums inside every chunk are one product with a triangular matrix for each
    channel, and what the chunks before add is the decayed sum of their ends, computed in the same
    way. This takes O(n) time and no loop over positions.
    """
    return _sum_of_level(u, rate, LEVELS)


def _sum_of_level(u: Tensor, rate: Tensor, levels: int) -> Tensor:
    any_length = torch.compiler.is_compiling() and not isinstance(u.shape[1], int)
    length, width = u.shape[1], WIDTH if any_length else min(WIDTH, u.shape[1])
    chunks = (length + width - 1) // width  # ONNX rounds a negative quotient up
    padded = F.pad(u, (0, 0, 0, chunks * width - length))
    rows = padded.unflatten(1, (chunks, width))  # (B, C, W, M)
    place = torch.arange(width, device=u.device)
    distance = (place[:, None] - place).clamp(min=0)
    decay = torch.exp(-rate[:, None, None] * distance).tril()  # (M, W, W)
    sums = torch.einsum("bcjm,mij->bcim", rows, decay)
    if levels > 1 if any_length else chunks > 1:
        ends = _sum_of_level(sums[:, :, -1], rate * width, levels - 1)  # (B, C, M)
        before = F.pad(ends, (0, 0, 1, 0))[:, :-1, None]  # (B, C, 1, M)
        sums = sums + before * torch.exp(-rate * (place[:, None] + 1))
    return sums.flatten(1, 2)[:, :length]


def build_moving_average(wanted: bool, dim: int, *, bias: bool, eps: float) -> MovingAverage | None:
    """None unless it is wanted."""
    if not isinstance(wanted, bool):
        raise TypeError(f"moving_average must be True or False: got {wanted!r}.")
    return MovingAverage(dim=dim, bias=bias, norm_eps=eps) if wanted else None
