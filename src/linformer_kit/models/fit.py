"""Whether the values of a LinformerConfig fit each other.

The core's modules are built without memory, on the meta device, so that what the core refuses, the
config refuses. Only layers that differ are built: absurd sizes take no time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

from ..core import checks
from ..core.decoder import LinformerDecoder
from ..core.encoder import LinformerEncoder
from ..core.names import CONFIG_NAMES
from ..core.positions import build_positions
from ..errors import shown

if TYPE_CHECKING:
    from .config import LinformerConfig


def check_fit(config: LinformerConfig) -> None:
    """Raise an error, in the names of the configuration, for values that do not fit each other."""
    if config.is_decoder and config.neighbours:
        raise ValueError(
            "neighbours are those on both sides, and a causal model must not see the later "
            f"ones: got neighbours={config.neighbours}. Leave it 0: the window shows a token "
            "those before it."
        )
    if config.is_decoder and config.moving_average:
        raise ValueError(
            "a moving average is of the tokens before and after, and a causal model must not see "
            "the later ones: got moving_average=True. Leave it False."
        )
    if config.is_decoder and config.global_tokens:
        raise ValueError(
            "a causal model must not see later tokens, and global tokens see all: got "
            f"global_tokens={config.global_tokens}. Leave it 0."
        )
    if config.is_decoder and (config.projection_bias or not config.final_norm):
        raise ValueError(
            "final_norm=False and projection_bias=True are for encoders: got a causal model with "
            f"final_norm={config.final_norm}, projection_bias={config.projection_bias}. Leave them "
            "as they are by default."
        )
    if config.tie_word_embeddings and config.embedding_size and not config.lm_transform:
        raise ValueError(
            "tied words of embedding_size need the layer of lm_transform: got "
            f"embedding_size={config.embedding_size}, lm_transform=False. Pass "
            "tie_word_embeddings=False."
        )
    _check_embeddings(config)
    _check_core(config)
    if config.is_encoder_decoder:
        _check_decoder(config)


def _check_embeddings(config: LinformerConfig) -> None:
    if config.is_decoder and config.feature_size is not None:
        raise ValueError(
            f"a causal model reads tokens: got feature_size={config.feature_size}. Leave it "
            "None, or use an encoder."
        )
    if not (config.is_encoder_decoder and config.shares_embeddings):
        return
    for name in ("vocab_size", "hidden_size"):
        here, there = getattr(config, name), config.of_decoder_value(name)
        if here != there:
            raise ValueError(
                f"one table serves encoder and decoder only if they have one {name}: got {here} "
                f"and decoder_{name}={there}. Pass share_embeddings=False."
            )


def _check_core(config: LinformerConfig) -> None:
    try:
        with torch.device("meta"):
            build_positions(
                config.positions, config.max_position_embeddings, config.embedding_width
            )
            if config.is_decoder:
                LinformerDecoder(**config.decoder_arguments() | {"depth": 1})
            else:
                LinformerEncoder(**config.encoder_arguments() | _different_layers(config))
    except (TypeError, ValueError) as error:
        names = {**CONFIG_NAMES, "k": "num_slots"} if config.is_decoder else CONFIG_NAMES
        raise type(error)(_renamed(str(error), names)) from error
    except RuntimeError as error:
        raise ValueError(
            "a matrix of these sizes is too large for torch: got "
            f"hidden_size={config.hidden_size}, intermediate_size={config.intermediate_size}, "
            f"num_attention_heads={config.num_attention_heads}, head_dim={config.head_dim}, "
            f"max_position_embeddings={config.max_position_embeddings}. Use smaller ones."
        ) from error


def _check_decoder(config: LinformerConfig) -> None:
    """The decoder of a model with both, whose values are those of `decoder_*`."""
    try:
        own = config.of_decoder()
        with torch.device("meta"):
            arguments = own.decoder_arguments(context_dim=config.hidden_size)
            LinformerDecoder(**arguments | {"depth": 1})
    except (RuntimeError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())
        text = _renamed(text, {**CONFIG_NAMES, "k": "context_k"})
        raise ValueError(f"the decoder (decoder_*, context_*): {text}") from error


def _different_layers(config: LinformerConfig) -> dict[str, Any]:
    """The layers with the smallest and the largest k: what fits them fits the others."""
    checks.layer_numbers("full_layers", config.full_layers or (), config.num_hidden_layers)
    if not isinstance(config.k, list):
        return {"depth": 1, "full_layers": ()}
    if len(config.k) != config.num_hidden_layers:
        raise ValueError(
            f"k must be one number or one for each of the {config.num_hidden_layers} layers: got "
            f"{len(config.k)}, {shown(config.k)}."
        )
    extremes = sorted({min(config.k), max(config.k)})
    return {"depth": len(extremes), "k": extremes, "full_layers": ()}


def _renamed(text: str, names: dict[str, str]) -> str:
    """A message of the core in the names of the configuration."""
    words = re.compile(rf"\b({'|'.join(names)})\b")
    return words.sub(lambda found: names[found[0]], text)
