"""The only new state of a Linformer: E (and F), which compress S positions to R rows.

Every kind but `max` is an R x S matrix E (F for the values). The kinds differ in its origin:

| kind    | E[j, i]                                                | length          |
|---------|--------------------------------------------------------|-----------------|
| linear  | learned                                                | <= max_length   |
| fixed   | drawn once from N(0, 1/k) (Johnson-Lindenstrauss)      | <= max_length   |
| dynamic | softmax over i of (x_i . W[j])                         | any             |
| conv    | learned taps[i - j*width] inside segment j, else 0      | any             |
| mean    | 1 / width inside segment j, else 0                      | any             |
| pool    | softmax over i in segment j of (x_i . w), else 0        | any             |
| max     | not a matrix: the largest value of segment j            | any             |

`linear` is here, the kinds of segments in `segments.py`, and the others in `projection_kinds.py`,
which has the table of all. `full`, ordinary attention, needs no projection.

A projection module owns the parameters. On an input it makes a `Compression`: E and F for that
batch, which can be applied before or after W_k. A bias b of W_k adds (E 1) b in both orders.

E X is a sum over spans of positions:

    E X = s * sum over spans c of E_c X_c,        s = finish(sum over spans c of statistics_c)

with E_c the columns of E that belong to span c, and a scale s of rows that is made of sums too (how
much of a row is visible, the denominators of a softmax). One process holds one span; ranks,
streamed blocks and recomputed blocks hold several. A kind says what one span adds: `partial`.

Legend: B batch, S context positions, R compressed rows, C channels, G key/value heads, D head size,
P sides (1 when E = F, else 2: keys, values), T heads with a matrix of their own (1 or G).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from . import checks
from .cpu.shared_gradient import can_share_gradient, matmul_sharing_gradient
from .numerics import at_least_float32, batched_matmul, exact_matmul, interpolate_keeping_norm
from .visible_scale import visible_scale

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Reader = tuple[nn.Module, ...] | None


@dataclass(eq=False)
class Span:
    """Consecutive positions, start ... end - 1, of a sequence of `length`."""

    start: int
    end: int
    length: int  # N
    mask: Tensor | None  # (B, S), True = a real position; None if no span has padding
    # The maximum of a tensor over all spans, given that of this one; None if it is the only one.
    highest: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def whole(cls, x: Tensor, mask: Tensor | None) -> Span:
        """The only span of x (B, N, ...)."""
        return cls(0, x.shape[1], x.shape[1], mask)

    def real(self, device: torch.device) -> Tensor:
        """The mask (B, S), or (1, S) if there is no padding."""
        if self.mask is not None:
            return self.mask
        return torch.ones(1, self.end - self.start, dtype=torch.bool, device=device)

    def positions(self, device: torch.device) -> Tensor:
        """(1, S)"""
        return torch.arange(self.start, self.end, device=device)[None]


class Compression:
    """E and F of one batch, at the positions of one span.

    The methods `*_sums` are what the span adds to rows that have no scale yet. After `finish` the
    scale is known, and with one span `compress_input`, `compress_keys` and `row_sums` are the rows.
    """

    commutes = True  # whether E (X W) = (E X) W
    statistics: Sequence[Tensor] = ()  # to be added over the spans, for `finish`
    scale: Tensor | None = None  # (1 or B, P, T, R), multiplies the rows
    keep: Tensor | None = None  # (B, R): False at rows made of padding alone; None: all real
    bias: Tensor | None = None  # (P, T, R), see `BiasedProjection`
    row_bias: Tensor | None = None  # (B, T, R), of scores beside exact keys: `PooledSegments`
    sides: int = 1  # P
    heads: int = 1  # T

    def input_sums(self, x: Tensor) -> Tensor:
        """E_c X: x (B, S, C) -> (B, P, T, R, C), every matrix applied to the same rows."""
        raise NotImplementedError

    def key_sums(self, rows: Tensor, side: int) -> Tensor:
        """E_c (X W): rows (B, S, G, D) -> (B, G, R, D), by E (side 0) or F (side 1)."""
        raise NotImplementedError

    def position_sums(self) -> Tensor:
        """E_c 1, with 1 only at real positions: (1 or B, P, T, R)."""
        raise NotImplementedError

    def input_sums_for(self, x: Tensor, reader: Reader) -> tuple[Tensor, Tensor]:
        """x and `input_sums(x)`. `reader`: the layers that read x next, if nothing else does.

        With a reader backward may add to the gradient of x in place: `cpu/shared_gradient.py`.
        """
        return x, self.input_sums(x)

    def finish(self, statistics: Sequence[Tensor]) -> None:
        """Set `scale` and `keep`, by the statistics added over all spans."""

    def scaled_input(self, rows: Tensor) -> Tensor:
        """(B, P, T, R, C)"""
        return rows if self.scale is None else rows * self.scale[..., None].to(rows.dtype)

    def scaled_keys(self, rows: Tensor, side: int) -> Tensor:
        """(B, G, R, D)"""
        if self.scale is None:
            return rows
        scale = self.scale[:, min(side, self.scale.shape[1] - 1), ..., None]
        return rows * scale.to(rows.dtype)

    def scaled_sums(self, sums: Tensor) -> Tensor:
        """(1 or B, P, T, R)"""
        return sums if self.scale is None else sums * self.scale

    def compress_input(self, x: Tensor) -> Tensor:
        return self.scaled_input(self.input_sums(x))

    def compress_keys(self, rows: Tensor, side: int) -> Tensor:
        return self.scaled_keys(self.key_sums(rows, side), side)

    def row_sums(self) -> Tensor:
        return self.scaled_sums(self.position_sums())

    def add_bias(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The bias of each row, added to every channel of the compressed rows (B, G, R, D)."""
        if self.bias is None:
            return key, value
        bias = self.bias[..., None].to(key.dtype)
        return key + bias[0], value + bias[-1]


class MatrixCompression(Compression):
    """A dense E: `matrix` (P*T*R, S), or (B, P*T*R, S) if it depends on the input.

    `scale_of`: the scale, of the added statistics.
    """

    def __init__(
        self,
        matrix: Tensor,
        *,
        sides: int,
        heads: int,
        mask: Tensor | None,
        statistics: Sequence[Tensor] = (),
        scale_of: Callable[[Sequence[Tensor]], Tensor] | None = None,
    ) -> None:
        self.matrix = matrix
        self.sides, self.heads, self.rows = sides, heads, matrix.shape[-2] // (sides * heads)
        self.mask = mask
        self.statistics, self.scale_of = statistics, scale_of
        self.sums: Tensor | None = None  # of the rows of E, if `input_sums_for` computed them

    def finish(self, statistics: Sequence[Tensor]) -> None:
        if self.scale_of is not None:
            self.scale = self.scale_of(statistics)

    def input_sums(self, x: Tensor) -> Tensor:
        return self._by_matrix(batched_matmul(self.matrix, x))

    def input_sums_for(self, x: Tensor, reader: Reader) -> tuple[Tensor, Tensor]:
        if reader is None or not can_share_gradient(x, self.matrix, reader):
            return x, self.input_sums(x)
        x, rows, self.sums = matmul_sharing_gradient(x, self.matrix)
        return x, self._by_matrix(rows)

    def _by_matrix(self, rows: Tensor) -> Tensor:
        """(B, P*T*R, C) -> (B, P, T, R, C)"""
        return rows.unflatten(1, (self.sides, self.heads, self.rows))

    def key_sums(self, rows: Tensor, side: int) -> Tensor:
        side = min(side, self.sides - 1)
        matrix = self.matrix.narrow(-2, side * self.heads * self.rows, self.heads * self.rows)
        if self.heads == 1:
            result = batched_matmul(matrix, rows.flatten(2))  # (B, R, G*D)
            return result.unflatten(2, rows.shape[2:]).transpose(1, 2)
        if matrix.dim() == 3:
            return matrix.unflatten(1, (self.heads, self.rows)) @ rows.transpose(1, 2)
        # One product per head for the whole batch: `@` would copy the matrix per sample.
        batch, _, _, size = rows.shape
        columns = rows.permute(2, 1, 0, 3).flatten(2)  # (G, S, B*D)
        result = torch.bmm(matrix.unflatten(0, (self.heads, self.rows)), columns)
        return result.unflatten(2, (batch, size)).permute(2, 0, 1, 3)

    def position_sums(self) -> Tensor:
        if self.mask is not None and self.matrix.dim() == 2:
            sums = self.mask.to(self.matrix.dtype) @ self.matrix.T  # (B, P*T*R)
        else:  # dynamic: padding has no weight already
            sums = self.matrix.sum(-1) if self.sums is None else self.sums  # (P*T*R) or (B, P*T*R)
        return sums.view(-1, self.sides, self.heads, self.rows)


class Projection(nn.Module):
    """Base of the kinds. `k` rows, for inputs of up to (or segments cut from) `max_length`.

    The class attributes are what the rest of the package knows about a kind.
    """

    adds_over_spans = True  # else the whole input is needed at once
    is_matrix = True  # else it does not commute with W_k, and is defined on the input alone
    of_segments = False  # rows are segments of ceil(max_length / k) positions
    needs_max_length = True
    learned_row_bias: Literal["each", "one"] | None = None  # beside exact keys: for rows
    by_content = False  # E depends on the input

    def __init__(self, *, k: int, max_length: int | None) -> None:
        super().__init__()
        self.k = k
        self.max_length = max_length

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        """E and F for `x` (B, S, M), whose padded rows are zero already; mask (B, S) or None.

        `rows` uses the first rows of E only: layers with a smaller k may share one matrix.
        """
        compression = self.partial(x, Span.whole(x, mask), rows=rows)
        compression.finish(compression.statistics)
        return compression

    def partial(self, x: Tensor, span: Span, *, rows: int | None = None) -> Compression:
        """E and F at the positions of a span, x (B, S, M)."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """A kind without parameters has nothing to reset."""

    def resize(self, max_length: int) -> None:
        """Change max_length and keep what was learned."""
        self.max_length = max_length

    def extra_repr(self) -> str:
        return f"k={self.k}, max_length={self.max_length}"


class StoredProjection(Projection):
    """A stored E (and F): `weight` (P, T, k, max_length)."""

    learned: bool  # else `weight` is a buffer
    weight: Tensor

    def __init__(
        self, *, k: int, max_length: int, sides: int, heads: int, keep_scale: bool = True
    ) -> None:
        super().__init__(k=k, max_length=max_length)
        self.keep_scale = keep_scale
        weight = torch.empty(sides, heads, k, max_length)
        if self.learned:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)
        self.reset_parameters()

    def partial(self, x: Tensor, span: Span, *, rows: int | None = None) -> Compression:
        checks.at_most_max_length(type(self).__name__, span.length, self.max_length)
        weight = self._first_rows(rows)
        sides, heads, count, _ = weight.shape
        weight = weight.flatten(0, 2)  # before the columns are cut: afterwards it would be a copy
        # When tracing, the length is a symbol: a comparison would pin it to one value.
        complete = not torch.compiler.is_compiling() and span.length == self.max_length
        own = weight if complete and span.highest is None else _columns(weight, span)  # (P*T*R, S)
        if not self.keep_scale or (complete and span.mask is None):
            return MatrixCompression(own, sides=sides, heads=heads, mask=span.mask)
        squares = at_least_float32(weight).square()
        visible = _columns(squares, span)
        if span.mask is None:
            left = visible.sum(-1)
        else:
            left = exact_matmul(span.mask.to(visible.dtype), visible.T)

        def scale_of(added: Sequence[Tensor]) -> Tensor:
            scale = visible_scale(squares.sum(-1), added[0]).to(weight.dtype)
            return scale.view(-1, sides, heads, count)

        return MatrixCompression(
            own,
            sides=sides,
            heads=heads,
            mask=span.mask,
            statistics=(left,),
            scale_of=scale_of,
        )

    def _first_rows(self, rows: int | None) -> Tensor:
        return self.weight if rows is None else self.weight[:, :, :rows]

    def resize(self, max_length: int) -> None:
        """Interpolate every row of E. Its norm stays: it sets the scale of a compressed row."""
        self.weight = interpolate_keeping_norm(self.weight, max_length)
        super().resize(max_length)


class LinearProjection(StoredProjection):
    """The paper's learned E and F.

    Initialised with variance 1/max_length, so that a row of E X has the variance of a row of X.
    For the same reason an input that lacks positions (shorter than max_length, or padded) has its
    rows scaled by |E[j]| / |E[j, present]| (`keep_scale`): otherwise, at an eighth of max_length,
    the scores would be sqrt(8) times too small and the softmax nearly uniform. `visible_scale.py`
    has its bound.
    """

    learned = True
    learned_row_bias = "each"

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)


def _columns(matrix: Tensor, span: Span) -> Tensor:
    if torch.compiler.is_compiling():
        # A slice would make a traced program refuse length == max_length, because whether a slice
        # is contiguous depends on it. The copy is cheap compared with the product that follows.
        places = torch.arange(span.start, span.end, device=matrix.device)
        return matrix.index_select(1, places)
    return matrix[:, span.start : span.end]
