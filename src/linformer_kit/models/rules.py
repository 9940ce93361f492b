"""The rule of each value in a LinformerConfig.

A value is checked when it is set, in the constructor and later. Whether values fit each other is
checked when a config is built, in `config.py`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

import torch

from ..core import checks
from ..core.activations import Activation
from ..core.attention import DropoutKind
from ..core.cost import Attend, Shorten
from ..core.decoder import CausalKind
from ..core.encoder import Norm
from ..core.positions import Positions
from ..core.projection_kinds import PROJECTIONS, SHARINGS
from ..errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    Rule = Callable[[str, object], None]

POOLINGS = ("cls", "mean", "max")
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 2**16  # each is built on its own, so an absurd number would take forever
MOST_LABELS = 2**20  # each has a name in the configuration


def boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False: got {shown(value)}.")


def text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string: got {shown(value)}.")


def number(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number: got {shown(value)}.")
    if isinstance(value, int) and abs(value) > LARGEST_SIZE:
        raise ValueError(f"{name} must be a number of common size: got {shown(value)}.")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite: got {value}.")
    return value


def probability(name: str, value: object) -> None:
    checks.probability(name, number(name, value))


def fraction(name: str, value: object) -> None:
    if not 0 <= number(name, value) <= 1:
        raise ValueError(f"{name} must be from 0 to 1: got {value}.")


def epsilon(name: str, value: object) -> None:
    if not 0 < number(name, value) <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1: got {value}.")


def deviation(name: str, value: object) -> None:
    if number(name, value) <= 0:  # transformers would take 0 for its own default
        raise ValueError(f"{name} must be above 0: got {value}.")


def whole(*, least: int, most: int = LARGEST_SIZE) -> Rule:
    def rule(name: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be a whole number: got {shown(value)}.")
        if not least <= value <= most:
            bound = f"at least {least}" if value < least else f"at most {most}"
            raise ValueError(f"{name} must be {bound}: got {shown(value)}.")

    return rule


def one_of(allowed: tuple[str, ...]) -> Rule:
    def rule(name: str, value: object) -> None:
        if isinstance(value, str):
            checks.one_of(name, value, allowed)
        else:
            names = ", ".join(map(repr, allowed))
            raise TypeError(f"{name} must be one of {names}: got {shown(value)}.")

    return rule


def optional(rule: Rule) -> Rule:
    def either(name: str, value: object) -> None:
        if value is not None:
            rule(name, value)

    return either


def one_or_several(rule: Rule) -> Rule:
    def each(name: str, value: object) -> None:
        (several(rule) if isinstance(value, list) else rule)(name, value)

    return each


def several(rule: Rule) -> Rule:
    def each(name: str, value: object) -> None:
        if not isinstance(value, list):
            raise TypeError(f"{name} must be a list: got {shown(value)}.")
        for place, part in enumerate(value):
            rule(f"{name}[{place}]", part)

    return each


def plan(name: str, value: object) -> None:
    if not isinstance(value, dict) or set(value) != {"shorten", "attend"}:
        error = ValueError if isinstance(value, dict) else TypeError
        raise error(
            f"{name} must say how to shorten and how to attend, "
            f'{{"shorten": "input", "attend": "fused"}}: got {shown(value)}.'
        )
    one_of(get_args(Shorten))(f"{name}.shorten", value["shorten"])
    one_of(get_args(Attend))(f"{name}.attend", value["attend"])


def labels(name: str, value: object) -> None:
    """id2label: a name for each class number; in JSON the numbers are strings."""
    numbers = value if isinstance(value, dict) else [None]
    if not all(
        isinstance(key, int) or (isinstance(key, str) and key.isdecimal()) for key in numbers
    ):
        raise TypeError(
            f'{name} must map the number of each label to its name, {{0: "no", 1: "yes"}}: got '
            f"{shown(value)}."
        )
    if not value:
        raise ValueError(f"{name} must have at least one label: got {value}.")


def label_numbers(name: str, value: object) -> None:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must map names to numbers: got {shown(value)}.")


def names(name: str, value: object) -> None:
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise TypeError(f"{name} must be a list of strings: got {shown(value)}.")


def dtype(name: str, value: object) -> None:
    known = value if isinstance(value, torch.dtype) else getattr(torch, str(value), None)
    if not isinstance(known, torch.dtype):
        raise ValueError(f"{name} must be a type of torch, such as 'bfloat16': got {shown(value)}.")


_size = whole(least=1)
_layers = whole(least=1, most=MOST_LAYERS)
_token = optional(whole(least=0))
_positions = optional(one_of(get_args(Positions)))

RULES: dict[str, Rule] = {
    "vocab_size": _size,
    "hidden_size": _size,
    "num_hidden_layers": _layers,
    "num_attention_heads": _size,
    "num_key_value_heads": optional(_size),
    "head_dim": optional(_size),
    "intermediate_size": _size,
    "hidden_act": one_of(get_args(Activation)),
    "hidden_dropout_prob": probability,
    "attention_probs_dropout_prob": probability,
    "activation_dropout": probability,
    "dropout_kind": one_of(get_args(DropoutKind)),
    "max_position_embeddings": _size,
    "position_embedding_type": _positions,
    "neighbours": whole(least=0),
    "moving_average": boolean,
    "type_vocab_size": whole(least=0),
    "embedding_norm": optional(boolean),
    "norm": one_of(get_args(Norm)),
    "final_norm": boolean,
    "layer_norm_eps": epsilon,
    "bias": boolean,
    "qkv_bias": optional(boolean),
    "initializer_range": deviation,
    "embedding_size": optional(_size),
    "pooler": boolean,
    "lm_transform": boolean,
    "lm_act": optional(one_of(("gelu", "gelu_tanh", "relu"))),
    "k": optional(one_or_several(whole(least=0))),
    "projection": one_of(tuple(PROJECTIONS)),
    "sharing": one_of(tuple(SHARINGS)),
    "keep_scale": boolean,
    "projection_bias": boolean,
    "plan": optional(plan),
    "causal_attention": optional(one_of(get_args(CausalKind))),
    "num_slots": whole(least=0),
    "window": optional(whole(least=0)),
    "global_tokens": whole(least=0),
    "full_layers": optional(several(whole(least=0))),
    "rotary": fraction,
    "decoder_vocab_size": optional(_size),
    "decoder_hidden_size": optional(_size),
    "decoder_num_hidden_layers": optional(_layers),
    "decoder_num_attention_heads": optional(_size),
    "decoder_num_key_value_heads": optional(_size),
    "decoder_head_dim": optional(_size),
    "decoder_intermediate_size": optional(_size),
    "decoder_position_embedding_type": _positions,
    "decoder_window": optional(_size),
    "context_projection": optional(one_of(tuple(PROJECTIONS))),
    "context_k": optional(_size),
    "context_sharing": one_of(tuple(SHARINGS)),
    "share_embeddings": boolean,
    "pooling": one_of(POOLINGS),
    "classifier_dropout": optional(probability),
    "classifier_act": one_of(("tanh", "gelu", "relu")),
    "feature_size": optional(_size),
    "label_smoothing": probability,
    "loss_chunk": whole(least=0),
    "return_logits": optional(boolean),
    "is_decoder": boolean,
    "use_cache": boolean,
    "tie_word_embeddings": boolean,
    "pad_token_id": _token,
    "bos_token_id": _token,
    "eos_token_id": optional(one_or_several(whole(least=0))),
    "decoder_start_token_id": _token,
    # What every configuration of transformers has.
    "transformers_version": optional(text),
    "architectures": optional(names),
    "output_hidden_states": optional(boolean),
    "output_attentions": optional(boolean),
    "return_dict": optional(boolean),
    "dtype": optional(dtype),
    "chunk_size_feed_forward": whole(least=0),
    "is_encoder_decoder": boolean,
    "id2label": optional(labels),
    "label2id": optional(label_numbers),
    "num_labels": whole(least=1, most=MOST_LABELS),
    "problem_type": optional(one_of(PROBLEMS)),
}
