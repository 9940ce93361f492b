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
from ..parallel.collectives import all_reduce
from ..parallel.parts import agree
from .entities import count_spans

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup

    from ..config.schema import Task
    from ..data.collate import Batch
    from ..parallel.parts import Part

LOGIT_BYTES = 256_000_000  # of one call; the logits are the largest thing an evaluation makes


@torch.no_grad()
def row_scores(
    model: nn.Module,
    batch: Batch,
    task: Task,
    vocab_size: int,
    *,
    group: ProcessGroup | None = None,
) -> Tensor:
    """(B, 3): summed loss, labelled tokens, correct.

    classify: (B, 3 + C): loss, label, prediction, and the probability of each label.
    tag: (B, 3 + 3 T): the three, then for each of T types of spans how many are right, predicted,
    and in the text. embed: (B, 2 M): the vectors of a text and of its positive.

    With a `group` the batch holds the part of this rank of each row, and the model is one that was
    parallelized; the scores are those of whole rows, the same on all ranks of the group.
    """
    part = None
    if group is not None and batch["labels"].dim() == 2:
        part = agree(group, batch["labels"], None)
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
        return _tag_scores(model, batch, part)
    size, length = batch["labels"].shape
    if part is not None:  # all ranks must call the model as often
        length = max(last - first for first, last in part.held)
    row_bytes = 4 * vocab_size * length
    if row_bytes > LOGIT_BYTES:
        rows = [_loss_alone(model, piece, task, part) for piece in _pieces(batch, 1)]
    else:
        rows = [
            _by_logits(model, piece, task, part)
            for piece in _pieces(batch, min(size, max(1, LOGIT_BYTES // row_bytes)))
        ]
    return torch.cat(rows)


def _tag_scores(model: nn.Module, batch: Batch, part: Part | None) -> Tensor:
    labels = batch["labels"]  # (B, N)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    logits = model(**inputs).logits.float()  # (B, N, C)
    nll = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED)
    found, types = logits.argmax(-1), (logits.shape[-1] - 1) // 2
    if part is not None:  # spans may cross the parts of ranks
        length = batch["word_starts"].shape[1]  # without what a short row is filled up with
        labels, nll, found = (part.gathered(each)[:, :length] for each in (labels, nll, found))
    places = torch.arange(labels.shape[1], device=labels.device)
    first, last = batch["core"][:, :1], batch["core"][:, 1:2]  # (B, 1)
    asked = (labels != IGNORED) & (places >= first) & (places < last)
    right = (found == labels) & asked
    tokens = torch.stack([(nll * asked).sum(1), asked.sum(1), right.sum(1)], dim=1).double()
    truth, guess = labels.cpu().numpy(), found.cpu().numpy()
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


def _by_logits(model: nn.Module, batch: Batch, task: Task, part: Part | None) -> Tensor:
    labels = batch["labels"]
    logits = model(**batch, return_logits=True).logits  # (B, N, V)
    if task == "clm":
        labels = _following(labels, part)
    asked = labels != IGNORED
    chosen = logits[asked].float()  # (labelled, V)
    nll = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device)
    right = torch.zeros_like(nll)
    nll[asked] = F.cross_entropy(chosen, labels[asked], reduction="none").double()
    right[asked] = (chosen.argmax(-1) == labels[asked]).double()
    scores = torch.stack([nll.sum(1), asked.sum(1).double(), right.sum(1)], dim=1)
    return scores if part is None else all_reduce(scores, part.group)


def _following(labels: Tensor, part: Part | None) -> Tensor:
    """The labels of a causal model: for each token the next."""
    if part is not None:
        return part.following(labels, last=IGNORED)
    return F.pad(labels[:, 1:], (0, 1), value=IGNORED)


def _loss_alone(model: nn.Module, batch: Batch, task: Task, part: Part | None) -> Tensor:
    """One row whose logits would not fit: its loss, made in chunks; no count of correct tokens."""
    loss = model(**batch, return_logits=False).loss.double()
    labels = _following(batch["labels"], part) if task == "clm" else batch["labels"]
    count = (labels != IGNORED).sum().double()
    count = count if part is None else all_reduce(count, part.group)
    return torch.stack([loss * count, count, torch.full_like(loss, torch.nan)])[None]
