"""The only new state of a Linformer: what shortens a sequence of S rows to R.

Every kind but `max` is an R x S matrix E (F for the values); they differ in where it comes from:

| kind    | E[j, i]                                                | length          |
|---------|--------------------------------------------------------|-----------------|
| linear  | learned                                                | <= max_length   |
| fixed   | drawn once from N(0, 1/k) (Johnson-Lindenstrauss)      | <= max_length   |
| conv    | learned taps[i - j*width] inside window j, else 0      | any             |
| mean    | 1 / width inside window j, else 0                      | any             |
| max     | not a matrix: the largest value of window j            | any             |
| dynamic | softmax over i of (x_i . W[j])                         | any             |

`full`, the seventh, is the identity: the attention needs no projection for it.

Windows have the width ceil(max_length / k) and lie end to end, so an input of S positions gives
ceil(S / width) rows: k at max_length, fewer below, and more above it.

A projection module owns parameters. Called on an input it returns a `Shortening`: E and F for
that batch, ready to be applied on whichever side of W_k is cheaper.

Legend: B batch, S context positions, R shortened rows, C channels, G key/value heads,
P sides (1 when E = F, else 2: key, value), T heads that have a matrix of their own (1 or G).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .shortening import (
    MatrixShortening,
    MaxShortening,
    Shortening,
    WindowShortening,
    at_least_float32,
    batched_product,
    visible_scale,
)

ProjectionKind = Literal["linear", "conv", "mean", "max", "fixed", "dynamic", "full"]
Sharing = Literal["none", "headwise", "kv", "layerwise"]

PROJECTIONS: tuple[str, ...] = get_args(ProjectionKind)
SHARINGS: tuple[str, ...] = get_args(Sharing)
WINDOW_KINDS = ("conv", "mean", "max")
NEED_MAX_LENGTH = ("linear", "fixed", *WINDOW_KINDS)


class Projection(nn.Module):
    """Base of the kinds. `k` rows, for inputs of up to (or windows cut from) `max_length`."""

    def __init__(self, *, k: int, max_length: int | None) -> None:
        super().__init__()
        self.k = k
        self.max_length = max_length

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Shortening:
        """E and F for `x` (B, S, M), whose padded rows are already zero; mask (B, S) or None.

        `rows` takes the first rows of E only: how layers with a smaller k share one matrix.
        """
        raise NotImplementedError

    def resize(self, max_length: int) -> None:
        """Give the projection a new max_length, keeping what it learned."""
        self.max_length = max_length

    def extra_repr(self) -> str:
        return f"k={self.k}, max_length={self.max_length}"


class _MatrixProjection(Projection):
    """A stored E (and F): `weight` (P, T, k, max_length)."""

    weight: Tensor

    def __init__(self, *, k: int, max_length: int, keep_scale: bool) -> None:
        super().__init__(k=k, max_length=max_length)
        self.keep_scale = keep_scale

    def _length_checked(self, length: int) -> int:
        assert self.max_length is not None
        if length > self.max_length:
            raise ValueError(
                f"a {type(self).__name__} takes at most max_length={self.max_length} positions: "
                f"got {length}. Truncate the input, build the model with a larger max_length, give "
                "a trained one a new length with linformer_kit.resize_max_length(model, "
                f"{length}), or use projection='dynamic', which takes any length."
            )
        return length

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Shortening:
        length = self._length_checked(x.shape[1])
        weight = self._first_rows(rows)
        sides, heads, count, _ = weight.shape
        weight = weight.flatten(0, 2)  # before the cut: afterwards it would not be a view
        # When tracing, the length is a symbol: comparing it here would pin it to one value.
        whole = not torch.compiler.is_compiling() and length == self.max_length
        present = weight if whole else _first_columns(weight, length)  # (P*T*R, S)
        scale = None
        if self.keep_scale and not (whole and mask is None):
            scale = _scale(weight, length, mask).view(-1, sides, heads, count)
        return MatrixShortening(present, sides=sides, heads=heads, scale=scale, mask=mask)

    def _first_rows(self, rows: int | None) -> Tensor:
        return self.weight if rows is None else self.weight[:, :, :rows]

    def resize(self, max_length: int) -> None:
        """Interpolate every row of E to the new length, keeping its norm.

        The norm is what sets the scale of a shortened row (see `LinearProjection`).
        """
        old = self.weight.detach()
        sides, heads, k, length = old.shape
        resized = _resized(old.reshape(sides * heads, k, length), max_length)
        resized = resized.reshape(sides, heads, k, max_length)
        if isinstance(self.weight, nn.Parameter):
            self.weight = nn.Parameter(resized, requires_grad=self.weight.requires_grad)
        else:
            self.weight = resized
        super().resize(max_length)


class LinearProjection(_MatrixProjection):
    """The paper's learned E and F, without bias.

    Initialised with variance 1/max_length, so that a row of E X has the variance of a row of X.
    By the same rule an input that lacks positions (shorter than max_length, or padded) has its
    rows scaled by |E[j]| / |E[j, present]| (`keep_scale`): without it, at an eighth of max_length
    the scores would be sqrt(8) times too small and the softmax nearly flat.

    The scale is at most `shortening.MAX_SCALE` = 10**4.5. It is reached where the positions that
    are present have almost no weight in row j, |E[j, present]| < 10**-4.5 |E[j]|; if they have none
    at all, row j of the result is zero. A row of E that is all zeros is not scaled.
    """

    def __init__(
        self, *, k: int, max_length: int, sides: int, heads: int, keep_scale: bool = True
    ) -> None:
        super().__init__(k=k, max_length=max_length, keep_scale=keep_scale)
        self.weight = nn.Parameter(torch.empty(sides, heads, k, max_length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)


class FixedProjection(_MatrixProjection):
    """A random matrix that is never trained: entries N(0, 1/k), as in the paper's theorems.

    With that variance E[|E v|^2] = |v|^2 for every v (Johnson-Lindenstrauss). It is a buffer, so
    it is saved with the model. Fewer rows of it are scaled up, to have the variance 1/rows.
    (`resize` keeps the norm of rows, as for every kind, and so not that variance.)
    """

    def __init__(
        self, *, k: int, max_length: int, sides: int, heads: int, keep_scale: bool = True
    ) -> None:
        super().__init__(k=k, max_length=max_length, keep_scale=keep_scale)
        self.register_buffer("weight", torch.empty(sides, heads, k, max_length))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.k**-0.5)

    def _first_rows(self, rows: int | None) -> Tensor:
        weight = super()._first_rows(rows)
        return weight if rows is None else weight * (self.k / rows) ** 0.5


class _WindowProjection(Projection):
    """What all kinds that cut the input in windows share: the width."""

    def __init__(self, *, k: int, max_length: int) -> None:
        super().__init__(k=k, max_length=max_length)
        self.width = math.ceil(max_length / k)

    def resize(self, max_length: int) -> None:
        self.width = math.ceil(max_length / self.k)
        super().resize(max_length)

    def _width(self, rows: int | None) -> int:
        """Layers that share this module with a smaller k have wider windows."""
        assert self.max_length is not None
        return self.width if rows is None else math.ceil(self.max_length / rows)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, width={self.width}"


class ConvProjection(_WindowProjection):
    """A filter of `width` taps moved by `width`: `weight` (P, T, width).

    One filter serves all channels, so it commutes with W_k and every order of multiplication
    holds; W_k and W_v then mix the channels, as the pointwise half of a separable convolution.
    """

    def __init__(
        self, *, k: int, max_length: int, sides: int, heads: int, keep_scale: bool = True
    ) -> None:
        super().__init__(k=k, max_length=max_length)
        self.keep_scale = keep_scale
        self.weight = nn.Parameter(torch.empty(sides, heads, self.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Shortening:
        if self._width(rows) != self.width:
            raise ValueError(
                f"conv has one filter of {self.width} taps, so it has one k: got k={self.k} and "
                f"{rows}. Use another sharing than 'layerwise', or the same k in every layer."
            )
        return WindowShortening(
            self.weight, length=x.shape[1], mask=mask, norm="l2" if self.keep_scale else None
        )

    def resize(self, max_length: int) -> None:
        super().resize(max_length)
        new = _resized(self.weight.detach(), self.width)
        self.weight = nn.Parameter(new, requires_grad=self.weight.requires_grad)


class MeanProjection(_WindowProjection):
    """The mean of what is present in each window. No parameters."""

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Shortening:
        width = self._width(rows)
        taps = x.new_full((1, 1, width), 1.0 / width)
        return WindowShortening(taps, length=x.shape[1], mask=mask, norm="count")


class MaxProjection(_WindowProjection):
    """The largest value of each channel of X in each window, before W_k and W_v. No parameters.

    Taking the maximum of the input, not of the keys, is a choice: the two differ, and this one
    costs k rows through W_k and W_v instead of n.
    """

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Shortening:
        return MaxShortening(self._width(rows), mask=mask)


class DynamicProjection(Projection):
    """Content-based: row j is the average of X weighted by softmax over positions of X W[j].

    `weight` (P, T, k, M). As in Transformer-LS (Zhu et al. 2021); takes any length, and a padded
    position has no weight.
    """

    def __init__(self, *, k: int, dim: int, sides: int, heads: int) -> None:
        super().__init__(k=k, max_length=None)
        self.weight = nn.Parameter(torch.empty(sides, heads, k, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)

    def forward(self, x: Tensor, mask: Tensor | None, *, rows: int | None = None) -> Shortening:
        weight = self.weight if rows is None else self.weight[:, :, :rows]
        sides, heads, _, dim = weight.shape
        scores = batched_product(weight.reshape(-1, dim), x.transpose(1, 2))  # (B, P*T*R, S)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        matrix = scores.softmax(-1).to(scores.dtype)
        if mask is not None:  # a sample of nothing but padding keeps no weight at all
            matrix = matrix.masked_fill(~mask[:, None], 0.0)
        return MatrixShortening(matrix, sides=sides, heads=heads, mask=mask)

    def resize(self, max_length: int) -> None:
        """Nothing to do: there is no maximum."""


def _first_columns(matrix: Tensor, length: int) -> Tensor:
    if torch.compiler.is_compiling():
        # A slice here would make a traced program refuse length == max_length: whether a slice
        # is contiguous depends on it. The copy is small beside the product that follows.
        return matrix.index_select(1, torch.arange(length, device=matrix.device))
    return matrix[:, :length]


def _scale(weight: Tensor, length: int, mask: Tensor | None) -> Tensor:
    """The scale of each of F rows of E: (F) or, with a mask, (B, F)."""
    squares = at_least_float32(weight).square()
    present = _first_columns(squares, length)
    left = present.sum(-1) if mask is None else mask.to(present.dtype) @ present.T
    return visible_scale(squares.sum(-1), left).to(weight.dtype)


def _resized(rows: Tensor, length: int) -> Tensor:
    """rows (A, B, N) interpolated to `length`, each keeping its norm."""
    wide = at_least_float32(rows)
    new = F.interpolate(wide, size=length, mode="linear", align_corners=True)
    scale = wide.norm(dim=-1, keepdim=True) / new.norm(dim=-1, keepdim=True).clamp_min(1e-30)
    return (new * scale).to(rows.dtype)


def count_matrices(sharing: Sharing, *, depth: int, num_kv_heads: int) -> int:
    """How many projection matrices a model has: 288, 24, 12, 1 for 12 layers of 12 heads."""
    sides, heads = sides_and_heads(sharing, num_kv_heads)
    return sides * heads * (1 if sharing == "layerwise" else depth)


def sides_and_heads(sharing: Sharing, num_kv_heads: int) -> tuple[int, int]:
    """(P, T): whether values have a matrix of their own, and how many heads have."""
    sides = 2 if sharing in ("none", "headwise") else 1
    heads = num_kv_heads if sharing == "none" else 1
    return sides, heads


def check_projection(projection: str, sharing: str, k: int | None, max_length: int | None) -> None:
    """Refuse a combination that has no meaning."""
    checks.one_of("projection", projection, PROJECTIONS)
    checks.one_of("sharing", sharing, SHARINGS)
    if max_length is not None:
        checks.positive("max_length", max_length)
    if projection == "full":
        return
    if k is None:
        raise ValueError(
            f"projection={projection!r} needs k, the number of rows to shorten to: got k=None. "
            "Only projection='full' has none."
        )
    checks.positive("k", k)
    if projection in NEED_MAX_LENGTH:
        if max_length is None:
            raise ValueError(
                f"projection={projection!r} needs max_length, the longest input: got None. "
                "Give it, or use projection='dynamic', which takes any length."
            )
        if k > max_length:
            raise ValueError(
                f"k must be at most max_length, for it shortens: got k={k}, "
                f"max_length={max_length}. Use a smaller k, or projection='full'."
            )


def build_projection(
    projection: ProjectionKind,
    *,
    k: int,
    max_length: int | None,
    sharing: Sharing,
    num_kv_heads: int,
    dim: int,
    keep_scale: bool = True,
) -> Projection:
    """The module for one kind (`full` has none). `dim` is the width of what is shortened."""
    check_projection(projection, sharing, k, max_length)
    sides, heads = sides_and_heads(sharing, num_kv_heads)
    if projection == "dynamic":
        return DynamicProjection(k=k, dim=dim, sides=sides, heads=heads)
    assert max_length is not None
    if projection == "mean":
        return MeanProjection(k=k, max_length=max_length)
    if projection == "max":
        return MaxProjection(k=k, max_length=max_length)
    learned = {"linear": LinearProjection, "fixed": FixedProjection, "conv": ConvProjection}
    return learned[projection](
        k=k, max_length=max_length, sides=sides, heads=heads, keep_scale=keep_scale
    )
