"""Examples become a batch: padded to the longest of them, not to the longest there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .masking import IGNORED, Masking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..config.schema import Task
    from .rows import Example

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Collate:
    """The batch a model of this task is called with.

    With `scoring` a batch also has what `metrics.row_scores` needs and a model does not take.
    `cut` keeps a part of the batch, where a row is read by several processes.
    """

    task: Task
    pad_id: int = 0
    masking: Masking | None = None
    scoring: bool = False
    cut: Callable[[Batch], Batch] | None = None

    def __call__(self, examples: Sequence[Example]) -> Batch:
        batch = self._whole(examples)
        return batch if self.cut is None else self.cut(batch)

    def _whole(self, examples: Sequence[Example]) -> Batch:
        if "features" in examples[0]:
            return self._features(examples)
        if self.task == "mlm":
            assert self.masking is not None
            masked = [self.masking(e["input_ids"], e["word_starts"], e["draw"]) for e in examples]
            batch = self._tokens([seen for seen, _ in masked])
            return {**batch, "labels": pad([labels for _, labels in masked], IGNORED)}
        rows = [example["input_ids"] for example in examples]
        batch = self._tokens(rows)
        if self.task == "clm":
            return {**batch, "labels": pad(rows, IGNORED)}
        if self.task == "embed":
            for side in ("positive", "negative"):
                if side in examples[0]:
                    other = self._tokens([example[side] for example in examples])
                    batch |= {f"{side}_{name}": value for name, value in other.items()}
            return batch
        if self.task == "tag":
            return {**batch, **self._tags(examples)}
        if self.task == "translate":
            return {**batch, "labels": pad([e["labels"] for e in examples], IGNORED)}
        return {**batch, "labels": torch.tensor([example["labels"] for example in examples])}

    def _tags(self, examples: Sequence[Example]) -> Batch:
        labels = {"labels": pad([example["tags"] for example in examples], IGNORED)}
        if not self.scoring:
            return labels
        names = ("core_start", "core_end", "cut_span")
        core = [[example[name] for name in names] for example in examples]
        missed = pad([example["missed"] for example in examples], IGNORED)
        words = pad([example["word_starts"] for example in examples], 1).bool()
        return {**labels, "word_starts": words, "core": torch.tensor(core), "missed": missed}

    def _tokens(self, rows: list[np.ndarray]) -> Batch:
        mask = pad([np.ones(len(row), dtype=np.int64) for row in rows], 0)
        return {"input_ids": pad(rows, self.pad_id), "attention_mask": mask}

    def _features(self, examples: Sequence[Example]) -> Batch:
        longest = max(example["length"] for example in examples)
        width = examples[0]["width"]
        embeds = np.zeros((len(examples), longest, width), dtype=np.float32)
        mask = np.zeros((len(examples), longest), dtype=np.int64)
        for place, example in enumerate(examples):
            length = example["length"]
            embeds[place, :length] = example["features"].reshape(length, width)
            mask[place, :length] = 1
        return {
            "inputs_embeds": torch.from_numpy(embeds),
            "attention_mask": torch.from_numpy(mask),
            "labels": torch.tensor([example["labels"] for example in examples]),
        }


def pad(rows: Sequence[np.ndarray], value: int) -> Tensor:
    """(B, longest), filled up on the right."""
    filled = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for place, row in enumerate(rows):
        filled[place, : len(row)] = row
    return torch.from_numpy(filled)
