"""How near a converted model is to the original, on text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import UserError
from ..models.text_input import longest
from .batches import rows_of
from .distillation import agreement, as_batch, hidden_states
from .distilling import mean_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

PIECES = 16


@torch.inference_mode()
def compare_on_texts(
    student: nn.Module,
    teacher: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    length: int | None = None,
    pieces: int = PIECES,
) -> dict[str, Any]:
    """Cosines of the last hidden states, over pieces of `length` tokens spread over the texts.

    By default as long as both models read. Text of fewer tokens is refused.
    """
    size = length or min(filter(None, (longest(each.config) for each in (student, teacher))))
    rows = [row for row in rows_of(list(texts), tokenizer, size) if len(row) == size]
    if not rows:
        raise UserError(f"the text has no piece of {size} tokens. Give more text.")
    chosen = rows[:: max(1, len(rows) // pieces)][:pieces]
    found: list[dict[str, float]] = []
    for row in chosen:
        batch = as_batch(torch.tensor([row]))
        ours, theirs = (hidden_states(model, batch)[-1] for model in (student, teacher))
        found.append(agreement(ours, theirs, batch["attention_mask"]))
    return {"pieces": len(chosen), "length": size, **mean_of(found)}
