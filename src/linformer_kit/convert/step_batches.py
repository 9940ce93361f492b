"""The batch of each step of distillation: a function of the seed, the step and the progress.

Rows are as long as both models read. If the student reads longer, every LONG_EVERY-th step after
the layers were trained reads rows of twice, four times ... that length, up to the student's, in
turn. A step has about the same number of tokens at every length, and at least one row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..data.collate import pad
from ..data.masking import IGNORED, Masking
from ..data.order import TrainingOrder
from .distillation import LAYERS_FIRST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from .training_text import Text

LONG_EVERY = 4


class StepBatches(torch.utils.data.Dataset[dict[str, "Tensor"]]):
    """Batches by step.

    text: its training part is cut into rows; `text.length` is that of short rows.
    longest: of long rows; at most `text.length` if there are none.
    progress: of a step, from 0 to 1.
    masking: for long rows of masked language models.
    """

    def __init__(
        self,
        text: Text,
        *,
        longest: int,
        batch_size: int,
        pad_id: int,
        seed: int,
        progress: Callable[[int], float],
        masking: Masking | None = None,
    ) -> None:
        self.progress = progress
        self.pad_id = pad_id
        self.masking = masking
        self.lengths = lengths_up_to(text.length, longest)
        self.rows = {length: text.rows(length) for length in self.lengths}
        sizes = {n: max(1, batch_size * text.length // n) for n in self.lengths}
        self.orders = {
            length: TrainingOrder(
                rows=len(rows), steps=1, batch_size=sizes[length], micro=sizes[length], seed=seed
            )
            for length, rows in self.rows.items()
        }

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        length, turn = self.lengths[0], step
        longer = self.lengths[1:]
        if longer and step % LONG_EVERY == LONG_EVERY - 1 and self.progress(step) >= LAYERS_FIRST:
            turn, which = divmod(step // LONG_EVERY, len(longer))
            length = longer[which]
        return self.batch(length, turn)

    def batch(self, length: int, turn: int) -> dict[str, Tensor]:
        """The rows of one length, for its n-th turn."""
        draws = self.orders[length].step(turn)
        rows = [self.rows[length][row] for row, _ in draws]
        labels = None
        if length > self.lengths[0] and self.masking is not None:
            starts = np.ones(length, dtype=bool)
            masked = [
                self.masking(row, starts, place)
                for row, (_, place) in zip(rows, draws, strict=True)
            ]
            rows = [seen for seen, _ in masked]
            labels = pad([asked for _, asked in masked], IGNORED)
        mask = pad([np.ones(len(row), dtype=np.int64) for row in rows], 0)
        batch = {"input_ids": pad(rows, self.pad_id), "attention_mask": mask}
        return batch if labels is None else {**batch, "labels": labels}


class StepNumbers:
    """The steps 0, 1, ... as a batch sampler: each batch is that of one step."""

    batch_size, drop_last = 1, True  # what accelerate looks for

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[Any]]:
        return ([step] for step in range(self.steps))


def lengths_up_to(short: int, longest: int) -> list[int]:
    """short, 2 * short, 4 * short ... and longest."""
    found = [short]
    while 2 * found[-1] < longest:
        found.append(2 * found[-1])
    return [*found, longest] if longest > short else found
