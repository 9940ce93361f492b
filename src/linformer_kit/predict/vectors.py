"""Texts as vectors of norm 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.overflow import mean_of_pieces
from ..errors import UserError
from .tasks import Question, TaskPredictor

if TYPE_CHECKING:
    from collections.abc import Sequence


class Embed(TaskPredictor):
    """One vector; those of pieces are averaged, weighted by their tokens.

    With `size`, its first components alone, which a model has learned with `train.matryoshka`.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        whole = int(self.model.config.hidden_size)
        self.vector_size = self.options.size or whole
        if self.vector_size > whole:
            raise UserError(
                f"size must be at most {whole}, the components of a vector of this model: got "
                f"{self.vector_size}."
            )

    def forward(
        self, pieces: Sequence[np.ndarray], model: Any, places: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        return list(model(**self.batch(pieces)).embeddings.float().cpu().numpy())

    def merge(self, question: Question, outputs: list[Any]) -> list[dict[str, Any]]:
        vector = mean_of_pieces(np.stack(outputs), [len(piece) for piece in question.pieces])
        vector = vector[: self.options.size]
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return [{"vector": [round(float(value), 7) for value in vector]}]
