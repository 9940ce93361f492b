"""Training on rows that are longer than the teacher reads.

A masked language model learns from its own objective. Any other model follows its teacher, which
reads the row in overlapping chunks, each as long as it can: a token's target is the last hidden
state in the chunk where it stands nearest to the middle. Longer positions are thus learned without
asking the teacher for positions it does not know.

Legend: B rows, N positions, C chunks, M model size.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .distillation import embedding_cosine, hidden_states, relative_error

if TYPE_CHECKING:
    from torch import nn

    from ..models.text_input import Frame

MASKED_LM_WEIGHT = 0.1  # its loss is some ten times that of hidden states


def long_loss(
    student: nn.Module, teacher: nn.Module, batch: dict[str, Tensor], *, chunk: int, frame: Frame
) -> Tensor:
    """The loss of whole rows (B, N); with `labels` that of masked language modelling.

    chunk: how many tokens the teacher reads, special tokens included.
    """
    if "labels" in batch:
        loss: Tensor = student(**batch, return_logits=False).loss
        return MASKED_LM_WEIGHT * loss
    theirs = chunked_states(teacher, batch["input_ids"], chunk=chunk, frame=frame)
    ours = last_states(student, batch)
    mask = batch["attention_mask"]
    return relative_error(ours, theirs, mask) + (1.0 - embedding_cosine(ours, theirs, mask)).mean()


def last_states(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """(B, N, M), of the model without its head."""
    base: Any = getattr(model, "base_model", model)
    states = getattr(base(**batch), "last_hidden_state", None)
    return hidden_states(model, batch)[-1] if states is None else states


@torch.no_grad()
def chunked_states(teacher: nn.Module, ids: Tensor, *, chunk: int, frame: Frame) -> Tensor:
    """The last hidden states (B, N, M) of rows, read in overlapping chunks of `chunk` tokens."""
    before, after = len(frame.before), len(frame.after)
    inside = chunk - before - after
    text = ids[:, before : ids.shape[1] - after]  # (B, N without special tokens)
    starts = chunk_starts(text.shape[1], inside)
    head, tail = ids[:, :before], ids[:, ids.shape[1] - after :]
    pieces = [torch.cat([head, text[:, s : s + inside], tail], dim=1) for s in starts]
    rows = torch.cat(pieces)  # (C * B, chunk)
    states = last_states(teacher, {"input_ids": rows, "attention_mask": torch.ones_like(rows)})
    by_chunk = states.unflatten(0, (len(starts), ids.shape[0]))  # (C, B, chunk, M)
    borders = [
        0,
        *((a + b + inside) // 2 for a, b in itertools.pairwise(starts)),
        text.shape[1],
    ]
    kept = [by_chunk[0, :, :before]]
    for number, start in enumerate(starts):
        low, high = borders[number] - start, borders[number + 1] - start
        kept.append(by_chunk[number, :, before + low : before + high])
    kept.append(by_chunk[-1, :, chunk - after :])
    return torch.cat(kept, dim=1)


def chunk_starts(length: int, chunk: int) -> list[int]:
    """Where chunks begin that overlap by half; the last one ends with the text."""
    if length <= chunk:
        return [0]
    starts = list(range(0, length - chunk, max(1, chunk // 2)))
    return [*starts, length - chunk]
