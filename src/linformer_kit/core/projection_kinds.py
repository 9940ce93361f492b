"""The table of projection kinds, and the small ones: options checked, matrices counted, modules
built.

Legend: B batch, S context positions, R compressed rows, M model size, P sides, T heads with a
matrix of their own.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from . import checks
from .numerics import at_least_float32, batched_matmul
from .projection import (
    Compression,
    LinearProjection,
    MatrixCompression,
    Projection,
    Span,
    StoredProjection,
)
from .segments import ConvProjection, MaxProjection, MeanProjection, PoolProjection

if TYPE_CHECKING:
    from collections.abc import Sequence

ProjectionKind = Literal["linear", "conv", "mean", "max", "pool", "fixed", "dynamic", "full"]
Sharing = Literal["none", "headwise", "kv", "layerwise"]


class BiasedProjection(LinearProjection):
    """Row j is E_j X W + bias_j, with `bias` (P, T, k) added to every channel.

    As in models of linformer-pytorch; the paper has none.
    """

    def __init__(
        self, *, k: int, max_length: int, sides: int, heads: int, keep_scale: bool = True
    ) -> None:
        super().__init__(
            k=k, max_length=max_length, sides=sides, heads=heads, keep_scale=keep_scale
        )
        self.bias = nn.Parameter(torch.zeros(sides, heads, k))

    def partial(self, x: Tensor, span: Span, *, rows: int | None = None) -> Compression:
        result = super().partial(x, span, rows=rows)
        result.bias = self.bias if rows is None else self.bias[:, :, :rows]
        return result

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "bias"):  # not before it exists: the base class resets itself
            nn.init.zeros_(self.bias)


class FixedProjection(StoredProjection):
    """A random matrix that is never trained: entries N(0, 1/k), as in the paper's theorems.

    With that variance E[|E v|^2] = |v|^2 for every v (Johnson-Lindenstrauss). It is a buffer, so
    it is saved with the model. If only some rows are used, they are scaled to variance 1/rows.
    (`resize` keeps the norm of rows, as for every kind, and so not that variance.)
    """

    learned = False

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.k**-0.5)

    def _first_rows(self, rows: int | None) -> Tensor:
        weight = super()._first_rows(rows)
        return weight if rows is None else weight * (self.k / rows) ** 0.5


class DynamicProjection(Projection):
    """Content-based: row j is the mean of X weighted by softmax over positions of X W[j].

    `weight` (P, T, k, M). As in Transformer-LS (Zhu et al. 2021). Padding has no weight.
    """

    needs_max_length = False
    by_content = True
    learned_row_bias = "each"

    def __init__(self, *, k: int, dim: int, sides: int, heads: int) -> None:
        super().__init__(k=k, max_length=None)
        self.weight = nn.Parameter(torch.empty(sides, heads, k, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[-1] ** -0.5)

    def partial(self, x: Tensor, span: Span, *, rows: int | None = None) -> Compression:
        """With several spans the softmax is exp(s - max s), whose sum is a statistic."""
        weight = self.weight if rows is None else self.weight[:, :, :rows]
        sides, heads, count, dim = weight.shape
        scores = batched_matmul(weight.reshape(-1, dim), x.transpose(1, 2))  # (B, P*T*R, S)
        if span.highest is not None:
            scores = at_least_float32(scores)
        hide = None if span.mask is None else ~span.mask[:, None]
        if hide is not None:
            scores = scores.masked_fill(hide, torch.finfo(scores.dtype).min)
        if span.highest is None:
            matrix = scores.softmax(-1).to(scores.dtype)
        else:
            matrix = (scores - span.highest(scores.amax(-1, keepdim=True))).exp()
        if hide is not None:  # a sample of padding alone has no weight at all
            matrix = matrix.masked_fill(hide, 0.0)
        sums = () if span.highest is None else (matrix.sum(-1).view(-1, sides, heads, count),)
        return MatrixCompression(
            matrix.to(x.dtype) if sums else matrix,
            sides=sides,
            heads=heads,
            mask=span.mask,
            statistics=sums,
            scale_of=_inverse if sums else None,
        )

    def resize(self, max_length: int) -> None:
        """Nothing to do: there is no maximum."""


def _inverse(added: Sequence[Tensor]) -> Tensor:
    """1 / x, 1 for the zero of a sample of padding alone."""
    return 1.0 / torch.where(added[0] > 0, added[0], 1.0)


KINDS: dict[str, type[Projection]] = {
    "linear": LinearProjection,
    "conv": ConvProjection,
    "mean": MeanProjection,
    "max": MaxProjection,
    "pool": PoolProjection,
    "fixed": FixedProjection,
    "dynamic": DynamicProjection,
}
PROJECTIONS: tuple[str, ...] = (*KINDS, "full")
SHARINGS: tuple[str, ...] = get_args(Sharing)
SEGMENT_KINDS = tuple(name for name, kind in KINDS.items() if kind.of_segments)
NOT_A_MATRIX = tuple(name for name, kind in KINDS.items() if not kind.is_matrix)
NEED_MAX_LENGTH = tuple(name for name, kind in KINDS.items() if kind.needs_max_length)
ADD_OVER_SPANS = tuple(name for name, kind in KINDS.items() if kind.adds_over_spans)


def count_matrices(sharing: Sharing, *, depth: int, num_kv_heads: int) -> int:
    """The number of projection matrices: 288, 24, 12, 1 for 12 layers of 12 heads."""
    sides, heads = sides_and_heads(sharing, num_kv_heads)
    return sides * heads * (1 if sharing == "layerwise" else depth)


def sides_and_heads(sharing: Sharing, num_kv_heads: int) -> tuple[int, int]:
    """(P, T): 2 sides if values have a matrix of their own, and the heads that have one."""
    sides = 2 if sharing in ("none", "headwise") else 1
    heads = num_kv_heads if sharing == "none" else 1
    return sides, heads


def learned_row_biases(projection: str, k: int | None) -> int:
    """How many biases a head learns for the scores of rows beside exact keys: k, 1 or 0."""
    learned = KINDS[projection].learned_row_bias if projection in KINDS else None
    return 0 if not k or learned is None else k if learned == "each" else 1


def check_projection(
    projection: str, sharing: str, k: int | None, max_length: int | None, *, bias: bool = False
) -> None:
    """Refuse undefined combinations. `bias`: whether the rows of E have one."""
    checks.one_of("projection", projection, PROJECTIONS)
    checks.one_of("sharing", sharing, SHARINGS)
    if bias and projection != "linear":
        raise ValueError(
            f"only projection='linear' has a bias: got projection_bias=True, "
            f"projection={projection!r}. Leave projection_bias False."
        )
    if max_length is not None:
        checks.positive("max_length", max_length)
    if projection == "full":
        return
    if k is None:
        raise ValueError(
            f"projection={projection!r} needs k, the number of compressed rows: got k=None. "
            "Only projection='full' has none."
        )
    if k == 0:
        checks.whole("k", k)
        return  # no compressed rows: a window alone, checked in `window.py`
    checks.positive("k", k)
    if projection in NEED_MAX_LENGTH:
        if max_length is None:
            raise ValueError(
                f"projection={projection!r} needs max_length, the longest input: got None. "
                "Give it, or use projection='dynamic', which takes any length."
            )
        if k > max_length:
            raise ValueError(
                f"k must be at most max_length: got k={k}, "
                f"max_length={max_length}. Use a smaller k, or projection='full'."
            )


def build_projection(
    projection: ProjectionKind,
    *,
    k: int | None,
    max_length: int | None,
    sharing: Sharing,
    num_kv_heads: int,
    dim: int,
    keep_scale: bool = True,
    bias: bool = False,
) -> Projection:
    """The module for one kind (`full` has none). `dim` is the width of the compressed input."""
    check_projection(projection, sharing, k, max_length)
    sides, heads = sides_and_heads(sharing, num_kv_heads)
    kind = BiasedProjection if bias else KINDS[projection]
    options: dict[str, Any] = {
        "k": k,
        "max_length": max_length,
        "sides": sides,
        "heads": heads,
        "dim": dim,
        "keep_scale": keep_scale,
    }
    takes = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in options.items() if name in takes})


def check_passed_projection(
    passed: Projection | None, *, own: Projection | None, k: int | None
) -> Projection:
    """The projection of one call: the one passed, or the layer's own."""
    projection = own if passed is None else passed
    if projection is None:
        raise ValueError(
            "this layer was built with external_projection=True: pass projection= to the call."
        )
    if k is not None and k > projection.k:
        raise ValueError(
            f"the projection passed must have at least the k={k} rows of this layer: got "
            f"{projection.k}."
        )
    return projection


def check_k_of_layers(
    k: int | Sequence[int] | None,
    depth: int,
    projection: str,
    sharing: str,
    max_length: int | None,
) -> list[int | None]:
    """One k for each layer of an encoder. Layers that share a conv filter must have the same k."""
    if k is not None and not isinstance(k, int) and len(k) != depth:
        raise ValueError(
            f"k must be one number or one for each of the {depth} layers: got {len(k)}, {list(k)}."
        )
    k_of_layer: list[int | None] = [k] * depth if k is None or isinstance(k, int) else list(k)
    for layer_k in k_of_layer:
        check_projection(projection, sharing, layer_k, max_length)
    if projection == "conv" and sharing == "layerwise" and len({*k_of_layer} - {0}) > 1:
        raise ValueError(
            f"one conv filter has one width, so layerwise sharing needs one k: got {k_of_layer}. "
            "Use sharing='kv', or the same k in every layer."
        )
    return k_of_layer


def largest(k_of_layer: list[int | None]) -> int | None:
    """The largest k, or None if no layer has one."""
    return max((k for k in k_of_layer if k is not None), default=None)
