"""The hidden states and attention weights of `LinformerEncoder`.

Legend: B batch, N positions, M model size, R compressed rows, H heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from .encoder import EncoderLayer, LinformerEncoder
    from .projection import Projection


class EncoderTrace(NamedTuple):
    """The output of an encoder with its hidden states and attention weights."""

    output: Tensor  # (B, N, M)
    hidden_states: tuple[Tensor, ...]  # the input of each layer, then the output: (B, N, M) each
    attentions: tuple[Tensor, ...]  # of each layer, as in AttentionTrace


def trace(
    encoder: LinformerEncoder, x: Tensor, *, mask: Tensor | None = None, attentions: bool = True
) -> EncoderTrace:
    """As forward, with every layer's input and its attention weights (B, H, N, R).

    The output is computed from the returned weights, so they have a gradient (`retain_grad`);
    it equals that of forward up to rounding. `attentions=False` omits the weights, which are
    large and slow.
    """
    x = encoder._embed(x, mask)
    hidden_states, weights = [], []
    for layer in encoder.layers:
        hidden_states.append(x)
        if attentions:
            x, layer_weights = encoder._run(layer, x, mask, need_weights=True)
            weights.append(layer_weights)
        else:
            x = encoder._run(layer, x, mask)
    output = encoder._finish(x, mask)
    return EncoderTrace(output, (*hidden_states, output), tuple(weights))


def layer_with_weights(
    layer: EncoderLayer, x: Tensor, mask: Tensor | None, projection: Projection | None
) -> tuple[Tensor, Tensor]:
    """The output of a layer and the attention weights (B, H, N, R) it is computed from."""
    source = layer.attention_input(x)
    if layer.attention.has_exact_keys:
        attended, weights = layer.attention.trace(source, mask=mask, projection=projection)
        return layer.after_attention(x, attended), weights
    kv, source = layer.attention.compress_self(source, mask=mask, projection=projection, fold=False)
    attended, weights = layer.attention.attend_with_weights(source, kv, mask=mask)
    return layer.after_attention(x, attended), weights
