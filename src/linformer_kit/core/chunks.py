"""Sequences cut into chunks. Legend: B batch, N tokens, C chunks, W window."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def in_chunks(rows: Tensor, chunks: int, window: int) -> Tensor:
    """(B, N, ...) -> (B, C, W, ...), padded with zeros. A view if N fits."""
    missing = chunks * window - rows.shape[1]
    if torch.compiler.is_compiling() or missing:
        rows = F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, missing))
    return rows.unflatten(1, (chunks, window))


def out_of_chunks(rows: Tensor, length: int) -> Tensor:
    """The first `length` positions of (B, C, W, ...): (B, N, ...)."""
    if torch.compiler.is_compiling():
        # A slice would pin whether a dynamic length is a multiple of the window.
        position = torch.arange(length, device=rows.device)
        return rows[:, position // rows.shape[2], position % rows.shape[2]]
    return rows.flatten(1, 2)[:, :length]


def shift_chunks(rows: Tensor, chunks: int) -> Tensor:
    """(B, C, ...) moved by some chunks to the right, with zeros before it."""
    return torch.cat((torch.zeros_like(rows[:, :chunks]), rows), dim=1)[:, : rows.shape[1]]
