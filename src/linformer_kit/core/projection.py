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

`linear` is here, the others in `fixed_`, `dynamic_`, `pool_` and `segment_projection.py`;
`projection_kinds.py` builds a kind by its name. `full`, ordinary attention, needs no projection.

A projection module owns the parameters. Called on an input it returns a `Compression`: E and F for
that batch, which can be applied before or after W_k. A bias b of W_k adds (E 1) b in both orders.

Legend: B batch, S context positions, R compressed rows, C channels, G key/value heads, D head size,
P sides (1 when E = F, else 2: keys, values), T heads with a matrix of their own (1 or G).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import checks
from .cpu.shared_gradient import can_share_gradient, matmul_sharing_gradient
from .numerics import at_least_float32, batched_matmul, exact_matmul, interpolate_keeping_norm
from .visible_scale import visible_scale

Reader = tuple[nn.Module, ...] | None


class Compression:
    """E and F of one batch. `keep` (B, R): False at rows made of padding alone; None: all real."""

    keep: Tensor | None = None
    bias: Tensor | None = None  # (P, T, R), see `biased_projection.py`
    row_bias: Tensor | None = None  # (B, T, R), of scores beside exact keys: `pool_projection.py`
    commutes = True  # whether E (X W) = (E X) W

    def compress_input(self, x: Tensor) -> Tensor:
        """E X: x (B, S, C) -> (B, P, T, R, C), every matrix applied to the same rows."""
        raise NotImplementedError

    def compress_keys(self, rows: Tensor, side: int) -> Tensor:
        """E (X W): rows (B, S, G, D) -> (B, G, R, D), by E (side 0) or F (side 1)."""
        raise NotImplementedError

    def row_sums(self) -> Tensor:
        """E 1, with 1 only at real positions: (1 or B, P, T, R)."""
        raise NotImplementedError

    def add_bias(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The bias of each row, added to every channel of the compressed rows (B, G, R, D)."""
        if self.bias is None:
            return key, value
        bias = self.bias[..., None].to(key.dtype)
        return key + bias[0], value + bias[-1]

    def compress_input_for(self, x: Tensor, reader: Reader) -> tuple[Tensor, Tensor]:
        """x and `compress_input(x)`. `reader`: the layers that read x next, if nothing else does.

        With a reader backward may add to the gradient of x in place: `cpu/shared_gradient.py`.
        """
        return x, self.compress_input(x)


class MatrixCompression(Compression):
    """A dense E: `matrix` (P*T*R, S), or (B, P*T*R, S) if it depends on the input."""

    def __init__(
        self,
        matrix: Tensor,
        *,
        sides: int,
        heads: int,
        scale: Tensor | None = None,
        mask: Tensor | None,
    ) -> None:
        self.matrix = matrix
        self.sides, self.heads, self.rows = sides, heads, matrix.shape[-2] // (sides * heads)
        self.scale = scale  # (1 or B, P, T, R), multiplies the rows of E
        self.mask = mask
        self.sums: Tensor | None = None  # of the rows of E, if `compress_input_for` computed them

    def compress_input(self, x: Tensor) -> Tensor:
        return self._scaled(batched_matmul(self.matrix, x))

    def compress_input_for(self, x: Tensor, reader: Reader) -> tuple[Tensor, Tensor]:
        if reader is None or not can_share_gradient(x, self.matrix, reader):
            return x, self.compress_input(x)
        x, rows, self.sums = matmul_sharing_gradient(x, self.matrix)
        return x, self._scaled(rows)

    def _scaled(self, rows: Tensor) -> Tensor:
        """(B, P*T*R, C) -> (B, P, T, R, C)"""
        rows = rows.unflatten(1, (self.sides, self.heads, self.rows))
        return rows if self.scale is None else rows * self.scale[..., None].to(rows.dtype)

    def compress_keys(self, rows: Tensor, side: int) -> Tensor:
        side = min(side, self.sides - 1)
        matrix = self.matrix.narrow(-2, side * self.heads * self.rows, self.heads * self.rows)
        if self.heads == 1:
            result = batched_matmul(matrix, rows.flatten(2))  # (B, R, G*D)
            result = result.unflatten(2, rows.shape[2:]).transpose(1, 2)
        elif matrix.dim() == 3:
            result = matrix.unflatten(1, (self.heads, self.rows)) @ rows.transpose(1, 2)
        else:  # one product per head for the whole batch: `@` would copy the matrix per sample
            batch, _, _, size = rows.shape
            columns = rows.permute(2, 1, 0, 3).flatten(2)  # (G, S, B*D)
            result = torch.bmm(matrix.unflatten(0, (self.heads, self.rows)), columns)
            result = result.unflatten(2, (batch, size)).permute(2, 0, 1, 3)
        if self.scale is None:
            return result
        return result * self.scale[:, side, ..., None].to(result.dtype)

    def row_sums(self) -> Tensor:
        if self.mask is not None and self.matrix.dim() == 2:
            sums = self.mask.to(self.matrix.dtype) @ self.matrix.T  # (B, P*T*R)
        else:  # dynamic: padding has no weight already
            sums = self.matrix.sum(-1) if self.sums is None else self.sums  # (P*T*R) or (B, P*T*R)
        sums = sums.view(-1, self.sides, self.heads, self.rows)
        return sums if self.scale is None else sums * self.scale


class Projection(nn.Module):
    """Base of the kinds. `k` rows, for inputs of up to (or segments cut from) `max_length`."""

    def __init__(self, *, k: int, max_length: int | None) -> None:
        super().__init__()
        self.k = k
        self.max_length = max_length

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        """E and F for `x` (B, S, M), whose padded rows are zero already; mask (B, S) or None.

        `rows` uses the first rows of E only: layers with a smaller k may share one matrix.
        """
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
        self,
        *,
        k: int,
        max_length: int,
        sides: int,
        heads: int,
        keep_scale: bool = True,
    ) -> None:
        super().__init__(k=k, max_length=max_length)
        self.keep_scale = keep_scale
        weight = torch.empty(sides, heads, k, max_length)
        if self.learned:
            self.weight = nn.Parameter(weight)
        else:
            self.register_buffer("weight", weight)
        self.reset_parameters()

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Compression:
        length = x.shape[1]
        checks.at_most_max_length(type(self).__name__, length, self.max_length)
        weight = self._first_rows(rows)
        sides, heads, count, _ = weight.shape
        weight = weight.flatten(0, 2)  # before the columns are cut: afterwards it would be a copy
        # When tracing, the length is a symbol: a comparison would pin it to one value.
        complete = not torch.compiler.is_compiling() and length == self.max_length
        present = weight if complete else _first_columns(weight, length)  # (P*T*R, S)
        scale = None
        if self.keep_scale and not (complete and mask is None):
            scale = _scale(weight, length, mask).view(-1, sides, heads, count)
        return MatrixCompression(present, sides=sides, heads=heads, scale=scale, mask=mask)

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

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)


def _first_columns(matrix: Tensor, length: int) -> Tensor:
    if torch.compiler.is_compiling():
        # A slice would make a traced program refuse length == max_length, because whether a slice
        # is contiguous depends on it. The copy is cheap compared with the product that follows.
        return matrix.index_select(1, torch.arange(length, device=matrix.device))
    return matrix[:, :length]


def _scale(weight: Tensor, length: int, mask: Tensor | None) -> Tensor:
    """The scale of each of F rows of E: (F) or, with a mask, (B, F)."""
    squares = at_least_float32(weight).square()
    present = _first_columns(squares, length)
    left = present.sum(-1) if mask is None else exact_matmul(mask.to(present.dtype), present.T)
    return visible_scale(squares.sum(-1), left).to(weight.dtype)
