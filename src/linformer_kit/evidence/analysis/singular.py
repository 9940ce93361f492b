"""How much of a matrix its largest singular values keep.

kept[r-1] = (s_1 + ... + s_r) / (s_1 + ... + s_n): the normalised cumulative singular values of the
paper's Figure 1.

Exact for small matrices. For large ones the first singular values come from a randomised SVD
(Halko, Martinsson, Tropp 2011, with power iterations), and the sum of the others from stochastic
Lanczos quadrature of what the first leave: for a random z with E[z z^T] = I,
E[z^T (R^T R)^(1/2) z] is the sum of the singular values of R, and Golub-Kahan bidiagonalisation
gives the Gauss quadrature of each z^T f(R^T R) z.

Legend: n rows, m columns, r ranks, q the ranks that are found, p probes.
"""

from __future__ import annotations

import torch
from torch import Tensor

EXACT_UP_TO = 512
OVERSAMPLED = 32
PROBES = 8
STEPS = 24


def kept_by_rank(
    matrix: Tensor, *, ranks: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """(..., n, m) -> (..., min(n, m)), or (..., ranks) by the randomised way.

    `ranks` None chooses: exact where the smaller side has at most 512 rows, else the first 512.
    """
    smaller = min(matrix.shape[-2:])
    if ranks is None and smaller <= EXACT_UP_TO:
        values = torch.linalg.svdvals(matrix)
        return values.cumsum(-1) / values.sum(-1, keepdim=True)
    found = min(ranks or EXACT_UP_TO, smaller)
    values, rest = _largest(matrix, found, generator)
    whole = values.sum(-1, keepdim=True) + _sum_of_values(rest, generator)[..., None]
    return (values.cumsum(-1) / whole)[..., :found]


def smallest_rank(kept: Tensor, share: float) -> Tensor:
    """The first rank that keeps the share, (..., r) -> (...); 0 where none of these does."""
    enough = kept >= share - 1e-6  # a curve that ends at 1 may miss it by rounding
    first = enough.to(torch.uint8).argmax(-1) + 1
    return torch.where(enough.any(-1), first, torch.zeros_like(first))


def _largest(
    matrix: Tensor, found: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The largest singular values, with OVERSAMPLED more, and the residual matrix."""
    size = min(found + OVERSAMPLED, *matrix.shape[-2:])
    basis = matrix @ _normal((matrix.shape[-1], size), matrix, generator)  # (..., n, size)
    for _ in range(2):  # power iterations suppress the small values
        basis = torch.linalg.qr(basis).Q
        basis = matrix @ torch.linalg.qr(matrix.mT @ basis).Q
    basis = torch.linalg.qr(basis).Q
    inside = basis.mT @ matrix  # (..., size, m)
    return torch.linalg.svdvals(inside), matrix - basis @ inside


def _sum_of_values(matrix: Tensor, generator: torch.Generator | None) -> Tensor:
    """An estimate of the sum of all singular values: (..., n, m) -> (...)."""
    columns = matrix.shape[-1]
    start = torch.sign(_normal((columns, PROBES), matrix, generator))  # (m, p), E[z z^T] = I
    right = (start / columns**0.5).expand(*matrix.shape[:-2], columns, PROBES)
    tiny = torch.finfo(matrix.dtype).eps * torch.linalg.matrix_norm(matrix)[..., None]
    lefts: list[Tensor] = []
    rights = [right]
    diagonal: list[Tensor] = []
    above: list[Tensor] = []
    left = matrix @ right
    for _ in range(min(STEPS, *matrix.shape[-2:])):
        left, length = _unit(_without(left, lefts), tiny)
        diagonal.append(length)
        lefts.append(left)
        right, length = _unit(_without(matrix.mT @ left, rights), tiny)
        above.append(length)
        rights.append(right)
        left = matrix @ right
    bidiagonal = torch.diag_embed(torch.stack(diagonal, -1)) + torch.diag_embed(
        torch.stack(above[:-1], -1), offset=1
    )  # (..., p, steps, steps)
    _, values, right_vectors = torch.linalg.svd(bidiagonal)
    weights = right_vectors[..., 0] ** 2  # how much of the start each vector holds
    return columns * (weights * values).sum(-1).mean(-1)


def _without(vectors: Tensor, others: list[Tensor]) -> Tensor:
    """Orthogonalise each column against the same column of the others; twice, for rounding."""
    for _ in range(2):
        for other in others:
            vectors = vectors - other * (vectors * other).sum(-2, keepdim=True)
    return vectors


def _unit(vectors: Tensor, tiny: Tensor) -> tuple[Tensor, Tensor]:
    """Normalised columns and their norms; columns of (almost) zero stay zero."""
    length = torch.linalg.vector_norm(vectors, dim=-2)
    length = torch.where(length > tiny, length, torch.zeros_like(length))
    scale = torch.where(length > 0, 1 / length.clamp_min(1e-30), torch.zeros_like(length))
    return vectors * scale[..., None, :], length


def _normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)
