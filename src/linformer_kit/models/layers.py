"""The core's layers under a class by which transformers finds what gradient checkpointing repeats.

transformers looks for instances of `GradientCheckpointingLayer`. The core's stacks checkpoint their
layers themselves, so these classes add no behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from ..core.decoder_layer import DecoderLayer
from ..core.encoder import EncoderLayer

if TYPE_CHECKING:
    from ..core.decoder import LinformerDecoder
    from ..core.encoder import LinformerEncoder


class LinformerEncoderLayer(GradientCheckpointingLayer, EncoderLayer):
    """An `EncoderLayer`; the encoder checkpoints it."""

    __call__: Any = nn.Module.__call__


class LinformerDecoderLayer(GradientCheckpointingLayer, DecoderLayer):
    """A `DecoderLayer`; the decoder checkpoints it."""

    __call__: Any = nn.Module.__call__


def mark_layers(stack: LinformerEncoder | LinformerDecoder) -> None:
    """Give the layers of a stack the classes above. Weights, names and outputs stay as they are."""
    for layer in stack.layers:
        layer.__class__ = (
            LinformerEncoderLayer if isinstance(layer, EncoderLayer) else LinformerDecoderLayer
        )
