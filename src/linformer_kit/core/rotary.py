"""Rotary positions (Su et al. 2021) on a part of every head.

A pair of channels is rotated by an angle proportional to the position, so the product of a query
and a key depends on their distance. The other channels are not rotated: they compare content
independently of position, which is all that a slot of older tokens can offer.

Legend: B batch, N positions, H heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_rotary(head_dim: int, fraction: float) -> int:
    """The number of rotated channels of a head, rounded down to an even number."""
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"rotary is a fraction of each head, from 0 to 1: got {fraction}.")
    return int(head_dim * fraction) // 2 * 2


def angles(position: Tensor, count: int) -> Tensor:
    """position (...) -> (..., count): times 1e4 ** (-i / count) for each i.

    In float64 where the device has it: at a million positions float32 would be off by 0.06.
    """
    wide = torch.float32 if position.device.type == "mps" else torch.float64
    exponent = torch.arange(count, device=position.device, dtype=wide) / count
    return position[..., None].to(wide) * 1e4**-exponent


def rotate(x: Tensor, position: Tensor, rotary_dim: int) -> Tensor:
    """Rotate the first `rotary_dim` channels of x (B, N, H, D) by position (B or 1, N)."""
    if rotary_dim == 0:
        return x
    half = rotary_dim // 2
    angle = angles(position, half)[:, :, None]  # (B or 1, N, 1, half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x.split((half, half, x.shape[-1] - rotary_dim), dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos, rest), dim=-1)
