"""Learned and sinusoidal position embeddings, added to the input."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .cpu.predicate import eager_on_cpu
from .rotary import angles

CHUNK = 2**16  # positions whose sines are computed together: in float64, which takes room

Positions = Literal["none", "learned", "sinusoidal"]


class LearnedPositions(nn.Module):
    """One learned vector for each of `max_length` positions."""

    def __init__(self, *, max_length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, position: Tensor | None = None) -> Tensor:
        """x (B, N, M) -> (B, N, M). `position` (B or 1, N), by default 0 ... N-1."""
        length, max_length = x.shape[1], self.weight.shape[0]
        if position is not None:
            if eager_on_cpu(position):
                length = int(position.max()) + 1
            self._check_length(length, max_length)
            return x + F.embedding(position, self.weight)
        self._check_length(length, max_length)
        return x + self.weight[:length]

    def _check_length(self, length: int, max_length: int) -> None:
        if length > max_length:
            raise ValueError(
                f"learned positions reach to max_length={max_length}: got {length} positions. "
                "Truncate the input, call linformer_kit.resize_max_length(model, "
                f"{length}), or use positions='sinusoidal', which have no limit."
            )

    def resize(self, max_length: int) -> None:
        """Interpolate the embeddings to a new number of positions."""
        old = self.weight.detach().t()[None].float()  # (1, M, N)
        new = F.interpolate(old, size=max_length, mode="linear", align_corners=True)[0].t()
        self.weight = nn.Parameter(
            new.contiguous().to(self.weight.dtype), requires_grad=self.weight.requires_grad
        )


class SinusoidalPositions(nn.Module):
    """sin and cos of the position at dim / 2 wavelengths from 2 pi to 20,000 pi (Vaswani 2017)."""

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(
                f"sinusoidal positions need an even dim: got {dim}. Use 'learned' or an even dim."
            )
        self.dim = dim

    def forward(self, x: Tensor, position: Tensor | None = None) -> Tensor:
        """x (B, N, M) -> (B, N, M). `position` (B or 1, N), by default 0 ... N-1."""
        if position is None:
            position = torch.arange(x.shape[1], device=x.device)
        length = position.shape[-1]
        if length <= CHUNK or not eager_on_cpu(x):
            return x + self._rows(position, x.dtype)
        rows = x.new_empty(*position.shape, self.dim)  # with a list of chunks they were there twice
        for start in range(0, length, CHUNK):
            some = slice(start, start + CHUNK)
            rows[..., some, :] = self._rows(position[..., some], x.dtype)
        return x + rows

    def _rows(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        angle = angles(position, self.dim // 2)  # (N, M/2) or (B or 1, N, M/2)
        return torch.cat((angle.sin(), angle.cos()), dim=-1).to(dtype)


def build_positions(
    positions: Positions, max_length: int | None, dim: int
) -> LearnedPositions | SinusoidalPositions | None:
    """The module for one kind; None for `none`."""
    checks.one_of("positions", positions, get_args(Positions))
    if positions == "none":
        return None
    if positions == "sinusoidal":
        return SinusoidalPositions(dim=dim)
    if max_length is None:
        raise ValueError("learned positions need max_length: got None. Give it, or 'sinusoidal'.")
    return LearnedPositions(max_length=max_length, dim=dim)
