"""Row blocks: work that treats every row alike, done on few rows at a time.

Once the keys and values are shortened, each row of a Linformer layer is on its own until the next
layer. On a CPU it is then faster to take some rows through the whole layer than all rows through
each operation: what lies between two operations stays in the cache, and the wide hidden layer is
never allocated for the whole sequence. Samples are on their own throughout, so of many short ones
as many as make a block go through the whole layer together, their shortening included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .allocator import keep_blocks
from .fastpath import eager_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

keep_blocks()

VALUES = 2**20  # of the widest row, in one block: 4 MB of float32, a part of the last-level cache


def rows_in_block(width: int) -> int:
    """How many rows to take at once, where the widest intermediate has `width` channels."""
    return max(256, VALUES // width)


def use_row_blocks(x: Tensor) -> bool:
    """Whether to work by blocks: in inference on a CPU. With gradients all is kept anyway."""
    return eager_on_cpu(x) and not torch.is_grad_enabled()


def sample_groups(x: Tensor, *, width: int) -> list[slice]:
    """The samples of x (B, N, C), as many together as make a block of rows."""
    batch, length = x.shape[:2]
    together = max(1, rows_in_block(width) // max(1, length))
    return [slice(b, b + together) for b in range(0, batch, together)]


def row_blocks(x: Tensor, *, width: int) -> list[tuple[slice, slice]]:
    """x (B, N, C) as blocks of samples and rows: many short samples, or a part of a long one."""
    size = rows_in_block(width)
    return [
        (samples, slice(i, i + size))
        for samples in sample_groups(x, width=width)
        for i in range(0, x.shape[1], size)
    ]


def in_sample_groups(fn: Callable[[slice], Tensor], x: Tensor, *, width: int) -> Tensor:
    """fn(samples) of the samples of x (B, N, C), by groups of them in inference on a CPU."""
    groups = sample_groups(x, width=width) if use_row_blocks(x) else []
    if len(groups) <= 1:
        return fn(slice(None))
    return _put_together(fn, groups, x)


def in_row_blocks(fn: Callable[..., Tensor], *tensors: Tensor, width: int) -> Tensor:
    """fn(slice(None), *tensors) for tensors (B, N, C), by blocks of rows in inference on a CPU.

    fn takes the slice of the batch the rows come from, then some rows of each tensor.
    """
    blocks = row_blocks(tensors[0], width=width) if use_row_blocks(tensors[0]) else []
    if len(blocks) <= 1:
        return fn(slice(None), *tensors)
    return _put_together(
        lambda block: fn(block[0], *(tensor[block] for tensor in tensors)), blocks, tensors[0]
    )


def linear_into(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor) -> None:
    """x W^T + b for rows x (R, C), put into out."""
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _put_together(fn: Callable[[Any], Tensor], parts: Sequence[Any], x: Tensor) -> Tensor:
    """fn of each part, which indexes x (B, N, C), put where the part stands: (B, N, ...)."""
    result: Tensor | None = None
    for part in parts:
        rows = fn(part)
        if result is None:
            result = rows.new_empty(*x.shape[:2], rows.shape[2])
        result[part] = rows
    assert result is not None
    return result
