"""Exact keys and values of attention with a window on a CPU, computed as the blocks need them.

A block of chunks sees its own rows and a window on each side. In inference only these exist: a
buffer of one block and two windows moves along the sequence, so that keys and values stay in the
cache and no tensor as long as the input is allocated for them. In training all of them are saved,
and the buffer is as long as the sequence.

Legend: N positions, W window, H heads, D head size, M model size; r rows of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .gemm import linear_into

if TYPE_CHECKING:
    from torch import Tensor

    from .window_blocks import Block, Inputs, Layout


class WindowKeys:
    """Keys and values of one sample: row i of the buffers is position `first` + i."""

    def __init__(self, inputs: Inputs, layout: Layout, b: int, key: Tensor, value: Tensor) -> None:
        """key, value: buffers (N, H*D), or as long as a block and two windows."""
        self.inputs, self.layout, self.b = inputs, layout, b
        self.key, self.value = key, value
        self.first = self.end = 0  # positions in the buffers

    def advance(self, block: Block) -> None:
        """Compute what the block sees and the block before it did not."""
        window, length = self.layout.window, self.inputs.x.shape[1]
        end = min(block.rows.stop + window, length)
        if end - self.first > self.key.shape[0]:
            self._drop_before(block.rows.start - window)
        new = slice(self.end - self.first, end - self.first)
        self.compute(slice(self.end, end), self.key[new], self.value[new])
        self.end = end

    def compute(self, rows: slice, key: Tensor, value: Tensor) -> None:
        """The keys and values of some positions, written to key and value (r, H*D)."""
        inputs, factor = self.inputs, self.layout.value_factor
        x = inputs.x[self.b, rows]
        linear_into(x, inputs.w_k, inputs.b_k, out=key)
        linear_into(x, inputs.w_v, inputs.b_v, out=value)
        if factor is not None:
            value.unflatten(1, (self.layout.heads, -1)).mul_(factor[self.b, rows])

    def of(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The keys and values of positions that the buffers hold: views (r, H*D)."""
        held = slice(rows.start - self.first, rows.stop - self.first)
        return self.key[held], self.value[held]

    def _drop_before(self, first: int) -> None:
        """Move what is still seen to the start of the buffers."""
        held = slice(first - self.first, self.end - self.first)
        for rows in (self.key, self.value):
            rows[: held.stop - held.start] = rows[held].clone()  # the two may overlap
        self.first = first
