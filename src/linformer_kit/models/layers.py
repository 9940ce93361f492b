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


class _CheckpointedByItsStack(GradientCheckpointingLayer):
    """Found by transformers, and not checkpointed by it: its stack does that.

    transformers up to 5.22 checkpoints in `__call__`, later versions in a `forward` that they put
    into every subclass.
    """

    __call__: Any = nn.Module.__call__

    def __init_subclass__(cls, **options: Any) -> None:
        nn.Module.__init_subclass__(**options)


class LinformerEncoderLayer(EncoderLayer, _CheckpointedByItsStack):
    """An `EncoderLayer`; the encoder checkpoints it."""


class LinformerDecoderLayer(DecoderLayer, _CheckpointedByItsStack):
    """A `DecoderLayer`; the decoder checkpoints it."""


def mark_layers(stack: LinformerEncoder | LinformerDecoder) -> None:
    """Give the layers of a stack the classes above. Weights, names and outputs stay as they are."""
    for layer in stack.layers:
        layer.__class__ = (
            LinformerEncoderLayer if isinstance(layer, EncoderLayer) else LinformerDecoderLayer
        )
