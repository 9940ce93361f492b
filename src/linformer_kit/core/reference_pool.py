"""The projection `pool` as plain loops: the oracle of `segments.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .reference import segments_of

if TYPE_CHECKING:
    from torch import Tensor

    from .reference import Compress


def compress_by_attention(queries: Tensor, width: int) -> Compress:
    """`pool`: row j is sum_i p_i x_i over present i of segment j, see `pooling_weights`."""

    def compress(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        query = queries[min(head, queries.shape[0] - 1)]
        segments = segments_of(rows.shape[0], width, positions)
        weights = [pooling_weights(query, inputs, segment) for segment in segments]
        return [
            sum(
                (p * rows[i] for p, i in zip(each, segment, strict=True)), torch.zeros_like(rows[0])
            )
            for each, segment in zip(weights, segments, strict=True)
        ]

    return compress


def pooling_weights(query: Tensor, inputs: Tensor, segment: list[int]) -> Tensor:
    """softmax over i of (x_i . w), for the positions i of a segment."""
    return torch.stack([inputs[i] @ query for i in segment]).softmax(0)
