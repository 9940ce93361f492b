"""The inputs of attention with a window on a CPU, cut into blocks of chunks, as views.

Legend: B batch, N positions, C chunks, W window, g global positions, R compressed rows, L = g + R,
H heads, D head size, M model size; r rows, c chunks of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .blocks import rows_in_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Layout:
    """The part of a call that has no gradient."""

    heads: int
    window: int
    seen: int  # g
    key_bias: Tensor | None  # (B, N), hides padding
    far_bias: Tensor | None  # (B or 1, C or 1, L), added to the scores of far keys
    far_shift: Tensor | None  # (B or 1, C), added to the scores of all far keys of a chunk
    value_factor: Tensor | None  # (B, N, H, 1), dropout of values
    plain: Callable[..., Tensor]  # the same function of the inputs by differentiable operations


class Inputs(NamedTuple):
    """The part of a call that may have a gradient."""

    x: Tensor  # (B, N, M), zero at padding
    w_q: Tensor
    b_q: Tensor | None
    w_k: Tensor
    b_k: Tensor | None
    w_v: Tensor
    b_v: Tensor | None
    w_o: Tensor
    b_o: Tensor | None
    row_key: Tensor | None  # (B, H, R, D)
    row_value: Tensor | None
    head_bias: Tensor | None  # (H, L), added to the scores of far keys


class Saved(NamedTuple):
    """What the backward pass needs besides the inputs; one block of it in inference."""

    queries: Tensor  # (B, N, H*D)
    key: Tensor
    value: Tensor
    mixed: Tensor  # the outputs of the heads
    logsumexp: Tensor  # (B, N, H), of both softmaxes together
    of_global: Tensor  # (B, H, g), of the queries of global positions


class Run(NamedTuple):
    """Adjacent chunks of a block with complete windows, or one chunk: c of them."""

    rows: slice  # of the block
    chunks: int
    keys: slice  # the window of the first chunk; every further one is W keys later


class Block(NamedTuple):
    rows: slice  # of the sequence
    chunks: slice
    runs: list[Run]


def rows_of_chunks(width: int, window: int) -> int:
    """The rows of a block: as many chunks as fit a block of rows, one at least."""
    return max(1, rows_in_block(width) // window) * window


def chunk_blocks(length: int, layout: Layout, width: int) -> Iterator[Block]:
    window, seen = layout.window, layout.seen
    step = rows_of_chunks(width, window) // window
    for first in range(0, -(-length // window), step):
        rows = slice(first * window, min((first + step) * window, length))
        runs: list[Run] = []
        for start in range(rows.start, rows.stop, window):
            keys = slice(max(start - window, seen), min(start + 2 * window, length))
            complete = keys.stop - keys.start == 3 * window
            own = slice(start - rows.start, min(start + window, length) - rows.start)
            if complete and runs and runs[-1].keys.stop - runs[-1].keys.start == 3 * window:
                run = runs.pop()
                runs.append(Run(slice(run.rows.start, own.stop), run.chunks + 1, run.keys))
            else:
                runs.append(Run(own, 1, keys))
        yield Block(rows, slice(first, first + step), runs)


def by_head(rows: Tensor, heads: int, chunks: int = 1) -> Tensor:
    """(c*W, H*D) -> (c, H, W, D), a view."""
    return rows.view(chunks, rows.shape[0] // chunks, heads, -1).transpose(1, 2)


def by_row(heads: Tensor) -> Tensor:
    """(c, H, W, ...) -> (c*W, H, ...); a view of what the kernel returns."""
    return heads.transpose(1, 2).flatten(0, 1)


def windows(rows: Tensor, run: Run, layout: Layout, first: int = 0) -> Tensor:
    """The windows (c, H, keys, D) of a run: overlapping views of rows (N, H*D).

    `first` is the position of the first row.
    """
    size, width = run.keys.stop - run.keys.start, rows.shape[1]
    head = width // layout.heads
    return rows[run.keys.start - first :].as_strided(
        (run.chunks, layout.heads, size, head), (layout.window * width, head, width, 1)
    )


def window_bias(layout: Layout, b: int, run: Run) -> Tensor | None:
    """(c, 1, 1, keys), a view."""
    if layout.key_bias is None:
        return None
    size = run.keys.stop - run.keys.start
    return layout.key_bias[b, run.keys.start :].as_strided(
        (run.chunks, 1, 1, size), (layout.window, 0, 0, 1)
    )


def far_bias_of(layout: Layout, head_bias: Tensor | None, b: int, block: Block) -> Tensor | None:
    """(1, H or 1, r or 1, L)"""
    bias = None if head_bias is None else head_bias[None, :, None]
    if layout.far_bias is None:
        return bias
    of_chunk = layout.far_bias[b if layout.far_bias.shape[0] > 1 else 0]  # (C or 1, L)
    if of_chunk.shape[0] > 1:
        of_chunk = _each_row(of_chunk[block.chunks], block, layout)  # (r, L)
    return of_chunk[None, None] if bias is None else bias + of_chunk


def far_shift_of(layout: Layout, b: int, block: Block) -> Tensor | None:
    """(r, 1)"""
    if layout.far_shift is None:
        return None
    of_chunk = layout.far_shift[b if layout.far_shift.shape[0] > 1 else 0, block.chunks, None]
    return _each_row(of_chunk, block, layout)


def _each_row(of_chunk: Tensor, block: Block, layout: Layout) -> Tensor:
    """(c, ...) -> (r, ...)"""
    count = block.rows.stop - block.rows.start
    return of_chunk.repeat_interleave(layout.window, 0)[:count]


def far_keys_of(
    inputs: Inputs, key: Tensor, value: Tensor, layout: Layout, b: int
) -> tuple[Tensor, Tensor] | None:
    """Global positions, of key and value (N, H*D), then compressed rows: (1, H, L, D) each."""
    both = [
        [] if layout.seen == 0 else [by_head(rows[: layout.seen], layout.heads)]
        for rows in (key, value)
    ]
    if inputs.row_key is not None and inputs.row_value is not None:
        both[0].append(inputs.row_key[b : b + 1])
        both[1].append(inputs.row_value[b : b + 1])
    return (torch.cat(both[0], dim=2), torch.cat(both[1], dim=2)) if both[0] else None
