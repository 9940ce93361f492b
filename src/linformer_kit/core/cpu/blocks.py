"""Blocks of rows: row-wise operations applied to few rows at a time.

Once keys and values are compressed, each row of a Linformer layer is independent of the others
until the next layer. On a CPU it is then faster to apply the whole layer to some rows than each
operation to all rows: intermediate results stay in the cache, and the wide hidden layer is never
allocated for the whole sequence. Samples are always independent, so several short samples that fit
a block are processed together, including their compression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .allocator import reuse_freed_blocks
from .predicate import eager_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VALUES = 2**20  # in the widest tensor of one block: 4 MB of float32, part of the last-level cache


def rows_in_block(width: int) -> int:
    """The number of rows in a block, if the widest intermediate result has `width` channels.

    A multiple of 128: products are computed in tiles of rows (`gemm.py`), fast ones if large.
    """
    return max(256, VALUES // width // 128 * 128)


def use_row_blocks(x: Tensor, *, training: bool) -> bool:
    """True for inference on a CPU. With gradients all intermediate results are saved anyway.

    False for a module in training mode, also without gradients: reentrant checkpointing runs it
    first without and then with gradients, and both have to draw the same dropout.
    """
    return eager_on_cpu(x) and not torch.is_grad_enabled() and not training


def sample_groups(x: Tensor, *, width: int) -> list[slice]:
    """Slices of the batch of x (B, N, C), each of as many samples as fit a block of rows."""
    batch, length = x.shape[:2]
    together = max(1, rows_in_block(width) // max(1, length))
    return [slice(b, b + together) for b in range(0, batch, together)]


def row_blocks(x: Tensor, *, width: int) -> list[tuple[slice, slice]]:
    """(samples, rows) of each block of x (B, N, C): several short samples, or part of a long."""
    reuse_freed_blocks()
    size = rows_in_block(width)
    return [
        (samples, slice(i, i + size))
        for samples in sample_groups(x, width=width)
        for i in range(0, x.shape[1], size)
    ]


def map_sample_groups(
    fn: Callable[[slice], Tensor], x: Tensor, *, width: int, training: bool
) -> Tensor:
    """fn(slice(None)); in inference on a CPU fn(samples) for groups of samples of x (B, N, C)."""
    groups = sample_groups(x, width=width) if use_row_blocks(x, training=training) else []
    if len(groups) <= 1:
        return fn(slice(None))
    return _assemble(fn, groups, x)


def map_row_blocks(
    fn: Callable[..., Tensor], *tensors: Tensor, width: int, training: bool
) -> Tensor:
    """fn(slice(None), *tensors) for tensors (B, N, C); in inference on a CPU by blocks of rows.

    fn is called with the slice of the batch that the rows belong to, and rows of each tensor.
    """
    in_blocks = use_row_blocks(tensors[0], training=training)
    blocks = row_blocks(tensors[0], width=width) if in_blocks else []
    if len(blocks) <= 1:
        return fn(slice(None), *tensors)
    return _assemble(
        lambda block: fn(block[0], *(tensor[block] for tensor in tensors)), blocks, tensors[0]
    )


def _assemble(fn: Callable[[Any], Tensor], parts: Sequence[Any], x: Tensor) -> Tensor:
    """fn(part) for each part, an index into x (B, N, C), written to that index of (B, N, ...)."""
    result: Tensor | None = None
    for part in parts:
        rows = fn(part)
        if result is None:
            result = rows.new_empty(*x.shape[:2], rows.shape[2])
        result[part] = rows
    assert result is not None
    return result
