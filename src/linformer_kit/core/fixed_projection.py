"""The random projection of the paper's theorems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from .projection import StoredProjection

if TYPE_CHECKING:
    from torch import Tensor


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
