"""Chunks of a sequence, whose queries attend to chunks around them and to further keys, in one
softmax.

The encoder's window (`window.py`) and the causal decoder (`causal.py`) are both this. Query chunk c
attends to `near` keys, the key chunks c ... c + P - 1 of a sequence of C + P - 1 chunks, and to
`far` keys: the same for all chunks, or some for each chunk. Both have a bias that is added to the
scores, `hidden_bias` at keys that must not be seen.

Legend: B batch, C chunks, W chunk length, P near chunks, L far keys, H heads, G key/value heads,
D head size. A dimension "C or 1" broadcasts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .cpu.chunk_attention import attend_chunks_on_cpu, use_cpu_chunks
from .sdpa import sdpa


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


class Keys(NamedTuple):
    """Keys and values, and what is added to their scores (None for nothing)."""

    key: Tensor  # near: (B, C + P - 1, W, G, D); far: (B, C or 1, L, G, D)
    value: Tensor
    bias: Tensor | None  # near: (B or 1, C or 1, 1, W or 1, P*W); far: (B or 1, C or 1, H or 1, L)


def attend_chunks(
    query: Tensor, near: Keys | None, far: Keys | None, *, drop: float = 0.0
) -> Tensor:
    """query (B, C, W, H, D) -> (B, C, W, H, D). `drop`: the dropout rate of single weights.

    At least one of `near` and `far` is given.
    """
    if not drop and use_cpu_chunks(query, near, far):
        return attend_chunks_on_cpu(query, near, far)
    return attend_chunks_plain(query, near, far, drop=drop)


def attend_chunks_plain(
    query: Tensor, near: Keys | None, far: Keys | None, *, drop: float = 0.0
) -> Tensor:
    """The same by differentiable operations; the keys of each chunk are copied."""
    key, value, bias = keys_of_chunks(query, near, far)
    mixed = sdpa(
        query.flatten(0, 1).transpose(1, 2),  # (B*C, H, W, D)
        key.flatten(0, 1).transpose(1, 2),
        value.flatten(0, 1).transpose(1, 2),
        bias=None if bias is None else bias.flatten(0, 1),
        drop=drop,
    )
    return mixed.transpose(1, 2).unflatten(0, query.shape[:2])


def keys_of_chunks(
    query: Tensor, near: Keys | None, far: Keys | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values (B, C, L + P*W, G, D) of each chunk, far then near, and their bias
    (B, C, H or 1, W or 1, L + P*W).
    """
    batch, chunks = query.shape[:2]
    keys, values, biases = [], [], []
    if far is not None:
        shape = (batch, chunks, *far.key.shape[2:])
        keys.append(far.key.expand(shape))
        values.append(far.value.expand(shape))
        biases.append(None if far.bias is None else far.bias.unsqueeze(3))
    if near is not None:
        reach = near.key.shape[1] - chunks + 1  # P
        keys.append(_windows(near.key, chunks, reach))
        values.append(_windows(near.value, chunks, reach))
        biases.append(near.bias)
    if all(bias is None for bias in biases):
        return torch.cat(keys, dim=2), torch.cat(values, dim=2), None
    present = [bias for bias in biases if bias is not None]
    sizes = [max(bias.shape[i] for bias in present) for i in range(2, 4)]
    full = [
        query.new_zeros(1).expand(batch, chunks, *sizes, key.shape[2])
        if bias is None
        else bias.expand(batch, chunks, *sizes, -1)
        for bias, key in zip(biases, keys, strict=True)
    ]
    return torch.cat(keys, dim=2), torch.cat(values, dim=2), torch.cat(full, dim=4)


def _windows(rows: Tensor, chunks: int, reach: int) -> Tensor:
    """(B, C + P - 1, W, G, D) -> (B, C, P*W, G, D)"""
    return torch.cat([rows[:, i : i + chunks] for i in range(reach)], dim=2)
