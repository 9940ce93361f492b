"""One row for a whole sequence, and what is decided from it.

Legend: B batch, N positions, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.cpu.linear import apply_linear
from ..core.dropout import dropout

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import LinformerConfig


def pooled(hidden: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """hidden (B, N, M) -> (B, M): its first real row, or the mean or the maximum of the real ones.

    mask (B, N), True = real, or None. A sample of nothing but padding gives zeros.
    """
    if mask is None:
        mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    if pooling == "cls":
        first = mask.int().argmax(1)  # (B)
        return hidden[torch.arange(hidden.shape[0], device=hidden.device), first]
    real = mask[..., None]
    if pooling == "mean":
        total = hidden.masked_fill(~real, 0.0).sum(1)
        return total / real.sum(1).clamp_min(1)
    highest = hidden.masked_fill(~real, torch.finfo(hidden.dtype).min).amax(1)
    return highest.masked_fill(~real.any(1), 0.0)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "relu": F.relu,
}


class ClassificationHead(nn.Module):
    """W_2 drop(act(W_1 drop(x))), as RoBERTa's with act = tanh."""

    def __init__(self, config: LinformerConfig, outputs: int) -> None:
        super().__init__()
        self.dropout = classifier_dropout(config)
        self.activation: Callable[[Tensor], Tensor] = _ACTIVATIONS[config.classifier_act]
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.out_proj = nn.Linear(config.hidden_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(apply_linear(self.dense, dropout(x, self.dropout, self.training)))
        return apply_linear(self.out_proj, dropout(x, self.dropout, self.training))


def classifier_dropout(config: LinformerConfig) -> float:
    own = config.classifier_dropout
    return float(config.hidden_dropout_prob if own is None else own)
