"""Batches for distillation and calibration: of texts, or as they are given."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core import checks
from ..models.text_input import longest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

BATCH = 4


def call(model: nn.Module, batch: Any) -> Any:
    """A model's output for a batch: a mapping of its arguments, a tuple of them, or the first."""
    if isinstance(batch, Mapping):
        return model(**{name: value for name, value in batch.items() if name != "labels"})
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def batches_of(
    data: Any,
    tokenizer: Any,
    readers: Sequence[nn.Module],
    batch_size: int,
    length: int | None,
    seed: int,
) -> Iterator[Any]:
    """Batches without end: of texts in a new order each time, or those given."""
    given = list(data)
    if not given:
        raise ValueError("distillation and calibration need data: got none.")
    if not isinstance(given[0], str):
        return itertools.cycle(given)
    if tokenizer is None:
        raise ValueError("texts need a tokenizer: got tokenizer=None. Pass that of the teacher.")
    checks.positive("batch_size", batch_size)
    if length is None:
        length = min(filter(None, (longest(each.config) for each in readers)))
    return _row_batches(rows_of(given, tokenizer, length), tokenizer, batch_size, seed)


def rows_of(texts: list[str], tokenizer: Any, length: int) -> list[list[int]]:
    """Pieces of at most `length` tokens, special tokens included."""
    rows: list[list[int]] = []
    for text in texts:
        pieces = tokenizer(
            text, truncation=True, max_length=length, return_overflowing_tokens=True, verbose=False
        )["input_ids"]
        rows += pieces if pieces and isinstance(pieces[0], list) else [pieces]
    return rows


def _row_batches(
    rows: list[list[int]], tokenizer: Any, batch_size: int, seed: int
) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        for i in range(0, max(1, len(order) - batch_size + 1), batch_size):
            chosen = [{"input_ids": rows[place]} for place in order[i : i + batch_size]]
            padded = tokenizer.pad(chosen, return_tensors="pt")
            yield {name: padded[name] for name in ("input_ids", "attention_mask")}
