"""A trained model for inputs that are longer than it has read: positions and E are interpolated.

The length is doubled until the input fits, so what a model says about a text depends on that text
alone, and texts of similar length share one extended model.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.positions import LearnedPositions
from ..core.projection import Projection
from ..machine_memory import require_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Model = TypeVar("Model", bound="PreTrainedModel")
LIVE = 6  # arrays of the size of the hidden states that a layer holds at least
SHORTER = "Use on_overflow: chunk or truncate, or shorten the text."


def extended_length(length: int, max_length: int) -> int:
    """`max_length`, doubled until `length` fits."""
    while max_length < length:
        max_length *= 2
    return max_length


def extended(model: Model, length: int) -> Model:
    """A copy of the model that reads `length` tokens, or the model itself if it does.

    Inputs too long for the memory of this machine are a ValueError.
    """
    config: Any = model.config
    if length <= config.max_position_embeddings:
        return model
    needed = 4 * length * config.hidden_size * LIVE
    require_memory(f"reading {length:,} tokens at once", needed, remedy=SHORTER)
    made: Any = copy.deepcopy(model)
    if any(_has_length(module) for module in made.modules()):
        made.resize_position_embeddings(length)
    else:  # nothing in it has a length
        made.config.max_position_embeddings = length
    return made


def _has_length(module: object) -> bool:
    if isinstance(module, Projection):
        return module.max_length is not None
    return isinstance(module, LearnedPositions)
