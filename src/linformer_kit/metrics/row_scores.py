"""What one pass over a batch tells about each of its rows.

Scores are kept a row at a time, so that rows that a distributed evaluation sees twice can be
dropped, and sums are exact whatever the batches were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.masking import IGNORED
from ..data.tagging import by_word
from .entities import count_spans

if TYPE_CHECKING:
    from torch import nn

    from ..config.schema import Task
    from ..data.collate import Batch

LOGIT_BYTES = 256_000_000  # of one call; the logits are the largest thing an evaluation makes


@torch.no_grad()
def row_scores(model: nn.Module, batch: Batch, task: Task, vocab_size: int) -> Tensor:
    """(B, 3): summed loss, labelled tokens, correct.

    classify: (B, 3 + C): loss, label, prediction, and the probability of each label.
    tag: (B, 3 + 3 T): the three, then for each of T types of spans how many are right, predicted,
    and in the text. embed: (B, 2 M): the vectors of a text and of its positive.
    """
    if task == "classify":
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        logits = model(**inputs).logits.float()  # (B, C)
        loss = F.cross_entropy(logits, batch["labels"], reduction="none")
        scores = torch.stack([loss, batch["labels"], logits.argmax(-1)], dim=1)
        return torch.cat([scores, logits.softmax(-1)], dim=1).double()
    if task == "embed":
        vectors = [
            model(batch[f"{side}input_ids"], batch[f"{side}attention_mask"]).embeddings
            for side in ("", "positive_")
        ]
        return torch.cat(vectors, dim=1).float()
    if task == "tag":
        return _tag_scores(model, batch)
    size = batch["labels"].shape[0]
    row_bytes = 4 * vocab_size * batch["labels"].shape[1]
    if row_bytes > LOGIT_BYTES and task == "clm":
        rows = [_loss_alone(model, piece) for piece in _pieces(batch, 1)]
    else:
        rows = [
            _by_logits(model, piece, task)
            for piece in _pieces(batch, min(size, max(1, LOGIT_BYTES // row_bytes)))
        ]
    return torch.cat(rows)


def _tag_scores(model: nn.Module, batch: Batch) -> Tensor:
    labels = batch["labels"]  # (B, N)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    logits = model(**inputs).logits.float()  # (B, N, C)
    places = torch.arange(labels.shape[1], device=labels.device)
    first, last = batch["core"][:, :1], batch["core"][:, 1:2]  # (B, 1)
    asked = (labels != IGNORED) & (places >= first) & (places < last)
    nll = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    right = (logits.argmax(-1) == labels) & asked
    tokens = torch.stack([(nll * asked).sum(1), asked.sum(1), right.sum(1)], dim=1).double()
    types = (logits.shape[-1] - 1) // 2
    truth = labels.cpu().numpy()
    guess = logits.argmax(-1).cpu().numpy()
    starts = batch["word_starts"].cpu().numpy()
    guess = np.stack([by_word(row, first) for row, first in zip(guess, starts, strict=True)])
    counted = torch.stack(
        [
            torch.from_numpy(count_spans(real, found, core, types))
            for real, found, core in zip(truth, guess, batch["core"].tolist(), strict=True)
        ]
    )  # (B, T, 3)
    missed = batch["missed"]
    for type_ in range(types):
        counted[:, type_, 2] += (missed == type_).sum(1).cpu()
    return torch.cat([tokens, counted.flatten(1).to(tokens.device)], dim=1)


def _pieces(batch: Batch, rows: int) -> list[Batch]:
    size = batch["labels"].shape[0]
    return [
        {name: value[start : start + rows] for name, value in batch.items()}
        for start in range(0, size, rows)
    ]


def _by_logits(model: nn.Module, batch: Batch, task: Task) -> Tensor:
    labels = batch["labels"]
    logits = model(**batch, return_logits=True).logits  # (B, N, V)
    if task == "clm":
        labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    asked = labels != IGNORED
    chosen = logits[asked].float()  # (labelled, V)
    nll = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device)
    right = torch.zeros_like(nll)
    nll[asked] = F.cross_entropy(chosen, labels[asked], reduction="none").double()
    right[asked] = (chosen.argmax(-1) == labels[asked]).double()
    return torch.stack([nll.sum(1), asked.sum(1).double(), right.sum(1)], dim=1)


def _loss_alone(model: nn.Module, batch: Batch) -> Tensor:
    """One row whose logits would not fit: its loss, made in chunks; no count of correct tokens."""
    loss = model(**batch, return_logits=False).loss.double()
    count = (batch["labels"][:, 1:] != IGNORED).sum().double()
    return torch.stack([loss * count, count, torch.full_like(loss, torch.nan)])[None]
