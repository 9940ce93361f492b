"""How near a converted model is to the original, on rows of held-out text.

Legend: B batch, N positions, M model size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from ..data.masking import IGNORED
from .distillation import agreement, hidden_states, relative_error
from .distilling import mean_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from torch import nn

    from ..data.masking import Masking

ROWS = 16  # that are compared


def spread(rows: Sequence[np.ndarray], count: int = ROWS) -> list[np.ndarray]:
    """At most `count` rows, evenly over all of them."""
    step = max(1, len(rows) // count)
    return list(rows[::step][:count])


@torch.inference_mode()
def scores(
    student: nn.Module,
    teacher: nn.Module,
    rows: Sequence[np.ndarray],
    *,
    masking: Masking | None = None,
) -> dict[str, Any]:
    """Cosines of the last hidden states, the error of every layer, and with `masking` masked LM.

    `layer_errors` are |ours - theirs|^2 / |theirs - mean|^2 of the output of each layer.
    """
    device = next(teacher.parameters()).device
    found: list[dict[str, float]] = []
    errors: list[list[float]] = []
    for row in rows:
        batch = _batch(row, device)
        ours, theirs = (hidden_states(model, batch) for model in (student, teacher))
        mask = batch["attention_mask"]
        found.append(agreement(ours[-1], theirs[-1], mask))
        pairs = zip(ours[1:], theirs[1:], strict=True)
        errors.append([float(relative_error(a, b, mask)) for a, b in pairs])
    result: dict[str, Any] = {"pieces": len(rows), "length": len(rows[0]), **mean_of(found)}
    result["layer_errors"] = [sum(column) / len(errors) for column in zip(*errors, strict=True)]
    if masking is not None:
        result |= masked_scores(student, rows, masking)
    return result


@torch.inference_mode()
def masked_scores(
    model: nn.Module, rows: Sequence[np.ndarray], masking: Masking
) -> dict[str, float]:
    """Accuracy and perplexity of a masked language model; the same tokens are masked each time."""
    device = next(model.parameters()).device
    right = asked = 0
    loss = 0.0
    for number, row in enumerate(rows):
        seen, labels = masking(row, row >= 0, -1 - number)
        chosen = torch.from_numpy(labels != IGNORED).to(device)
        wanted = torch.from_numpy(labels).to(device)[chosen]
        logits: Any = model(**_batch(seen, device)).logits[0, chosen].float()
        loss += float(F.cross_entropy(logits, wanted, reduction="sum"))
        right += int((logits.argmax(-1) == wanted).sum())
        asked += int(chosen.sum())
    return {
        "masked_accuracy": right / max(1, asked),
        "masked_perplexity": math.exp(min(700.0, loss / max(1, asked))),
    }


def _batch(row: np.ndarray, device: torch.device) -> dict[str, torch.Tensor]:
    ids = torch.from_numpy(row).to(device)[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
