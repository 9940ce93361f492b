"""The distance between a converted model and its teacher.

Two losses. `layer_loss` trains each layer on the teacher's own hidden states: from the same input
it has to make the same output, so errors do not add up. `hidden_loss` trains the whole student:
every hidden state, and the direction of the mean of the last one.

Legend: B batch, N positions, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.pooling import pooled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

LAYERS_FIRST = 0.2  # the share of the time in which layers are trained one by one


def hidden_states(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The input of each layer and the last output, (B, N, M) each."""
    outputs = model(**batch, output_hidden_states=True)
    states: tuple[Tensor, ...] = outputs.hidden_states
    return states


def relative_error(ours: Tensor, theirs: Tensor, mask: Tensor) -> Tensor:
    """|ours - theirs|^2 / |theirs - mean|^2 over the real positions: 0 is equal."""
    real = mask.bool()
    ours, theirs = ours[real], theirs[real]
    spread = (theirs - theirs.mean(0)).square().mean()
    return (ours - theirs).square().mean() / spread.clamp_min(1e-12)


def hidden_loss(ours: Sequence[Tensor], theirs: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The mean error of all hidden states, and 1 - cosine of the mean-pooled last one."""
    errors = [relative_error(a, b, mask) for a, b in zip(ours[1:], theirs[1:], strict=True)]
    cosine = embedding_cosine(ours[-1], theirs[-1], mask)
    return torch.stack(errors).mean() + (1.0 - cosine).mean()


def layer_loss(encoder: Any, theirs: Sequence[Tensor], mask: Tensor) -> Tensor:
    """The mean error of layers, each of which is given the teacher's hidden state."""
    real = mask.bool()
    every = None if bool(real.all()) else real
    errors = [
        relative_error(layer(before, every, encoder.projection), after, mask)
        for layer, before, after in zip(encoder.layers, theirs[:-1], theirs[1:], strict=True)
    ]
    return torch.stack(errors).mean()


def embedding_cosine(ours: Tensor, theirs: Tensor, mask: Tensor) -> Tensor:
    """Of the means of the real rows of (B, N, M): (B)."""
    real = mask.bool()
    return F.cosine_similarity(pooled(ours, real, "mean"), pooled(theirs, real, "mean"))


@torch.no_grad()
def agreement(ours: Tensor, theirs: Tensor, mask: Tensor) -> dict[str, float]:
    """Cosines of last hidden states (B, N, M): of the mean of a sequence, and of single tokens."""
    real = mask.bool()
    embeddings = embedding_cosine(ours, theirs, mask)
    tokens = F.cosine_similarity(ours[real], theirs[real], dim=-1)
    return {"embedding_cosine": float(embeddings.mean()), "token_cosine": float(tokens.mean())}


def as_batch(batch: Any) -> dict[str, Tensor]:
    """A batch with an attention mask; a tensor is taken as input_ids."""
    given = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
    given.pop("labels", None)
    if "attention_mask" not in given:
        first = next(iter(given.values()))
        given["attention_mask"] = torch.ones(first.shape[:2], dtype=torch.long)
    return given
