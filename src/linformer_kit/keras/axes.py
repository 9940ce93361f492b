"""Which axes of a tensor are the sequence, and that sequence as rows.

Keras attends over any axes. Shortening needs one sequence: (Z, S, C) with everything that is not
attended over in Z, all positions in S, and the channels in C. Back in the layout of the input the
shortened rows lie along the first attention axis, and the others have the size 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from keras import ops

if TYPE_CHECKING:
    from collections.abc import Sequence


class SequenceAxes(NamedTuple):
    """The attention axes of tensors with `leading` axes before their channels."""

    attended: tuple[int, ...]
    leading: int

    @property
    def others(self) -> list[int]:
        return [axis for axis in range(self.leading) if axis not in self.attended]

    def rows(self, x: Any) -> Any:
        """(..., channels ...) -> (Z, S, C)"""
        sizes = ops.shape(x)
        x = _transposed(x, [*self.others, *self.attended, *range(self.leading, len(sizes))])
        positions = _product([sizes[axis] for axis in self.attended])
        return ops.reshape(x, (-1, positions, math.prod(x.shape[self.leading :])))

    def lay_out(self, rows: Any, sizes: Sequence[Any], channels: Sequence[int]) -> Any:
        """(Z, R, C) -> the layout of an input whose leading axes have these sizes."""
        count = ops.shape(rows)[1]
        shortened = [count] + [1] * (len(self.attended) - 1)
        others = [sizes[axis] for axis in self.others]
        x = ops.reshape(rows, (*others, *shortened, *channels))
        order = [*self.others, *self.attended]
        back = [order.index(axis) for axis in range(self.leading)]
        return _transposed(x, [*back, *range(self.leading, self.leading + len(channels))])


def _transposed(x: Any, order: list[int]) -> Any:
    return x if order == sorted(order) else ops.transpose(x, order)


def _product(sizes: list[Any]) -> Any:
    """As math.prod, for sizes that a graph may know as tensors only."""
    product = sizes[0]
    for size in sizes[1:]:
        product = product * size
    return product
