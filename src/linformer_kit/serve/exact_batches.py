"""Batches in which an answer has the bits that it has alone.

The layers of this package compute a row alike in any batch where they are told to
(`core.cpu.gemm.batch_invariant`); PyTorch's own products promise nothing. So only pieces of the
same length, and of at least `SHORTEST` tokens, share a batch; heads that read one row of a text are
applied to each text on its own; and `keeps_bits` tries, when a model is loaded, whether that
suffices. If it does not, every piece is computed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.cpu.gemm import batch_invariant
from ..predict.tasks import masks_at

if TYPE_CHECKING:
    from ..predict.tasks import TaskPredictor

SHORTEST = 8  # tokens of a piece that may share a batch
TRIED_LENGTHS = (SHORTEST, 33, 128, 300)
TRIED_SIZES = (2, 3, 8)
HEADS = {"mlm": ("transform", "lm_head"), "classify": ("classifier",)}


class PerRow(nn.Module):
    """A module that is applied to each row (B, M) on its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.inner(row) for row in x.split(1)])


def split_heads(model: Any, task: str) -> None:
    """Apply the heads that read one row of a text to each text on its own."""
    for name in HEADS.get(task, ()):
        if isinstance(head := getattr(model, name, None), nn.Module):
            setattr(model, name, PerRow(head))


@torch.no_grad()
@batch_invariant()
def keeps_bits(task: TaskPredictor, longest: int | None) -> bool:
    """Whether outputs have the same bits alone and in batches, as far as a few sizes show."""
    draw = np.random.default_rng(0)
    for length in TRIED_LENGTHS:
        if longest is not None and length > longest:
            break
        rows = [_row(task, length, draw) for _ in range(max(TRIED_SIZES))]
        places = [(masks_at(1), 0)] * len(rows)
        alone = [task.forward([row], task.model, places[:1])[0] for row in rows]
        for size in TRIED_SIZES:
            made = task.forward(rows[:size], task.model, places[:size])
            if not all(_same(one, two) for one, two in zip(made, alone, strict=False)):
                return False
    return True


def _row(task: TaskPredictor, length: int, draw: np.random.Generator) -> np.ndarray:
    config = task.model.config
    if task.tokenizer is None:
        return draw.standard_normal((length, config.feature_size)).astype(np.float32)
    return draw.integers(0, config.vocab_size, length)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, two)
    return bool(one == two)
