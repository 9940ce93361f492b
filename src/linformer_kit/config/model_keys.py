"""Which keys of the section `model` each task uses. Imports no torch: a typo is told at once."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .schema import Task

# Which keys of LinformerConfig a task has a use for. The rest follow from the data, or would be
# taken and do nothing.
LAYERS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "activation_dropout",
    "position_embedding_type",
    "embedding_norm",
    "norm",
    "layer_norm_eps",
    "bias",
    "qkv_bias",
    "initializer_range",
)
ENCODER = (
    "k",
    "projection",
    "sharing",
    "window",
    "global_tokens",
    "keep_scale",
    "dropout_kind",
    "plan",
    "neighbours",
    "moving_average",
)
START = ("from",)
CAUSAL = ("causal_attention", "num_slots", "rotary")
WORDS = ("tie_word_embeddings", "loss_chunk")
DECODER = (
    "decoder_num_hidden_layers",
    "decoder_num_attention_heads",
    "decoder_num_key_value_heads",
    "decoder_head_dim",
    "decoder_intermediate_size",
    "decoder_position_embedding_type",
    "decoder_window",
    "context_projection",
    "context_k",
    "context_sharing",
    "share_embeddings",
)
MODEL_KEYS: dict[Task, tuple[str, ...]] = {
    "mlm": START + LAYERS + ENCODER + WORDS,
    "clm": (*START, *LAYERS, *CAUSAL, "window", *WORDS),
    "classify": (*START, *LAYERS, *ENCODER, "pooling", "classifier_dropout"),
    "tag": (*START, *LAYERS, *ENCODER, "classifier_dropout"),
    "embed": (*START, *LAYERS, *ENCODER, "pooling"),
    "translate": START + LAYERS + ENCODER + CAUSAL + WORDS + DECODER,
}


def check_model_keys(task: Task, names: Iterable[str]) -> None:
    """Refuse a key of the section `model` that this task has no use for."""
    known = MODEL_KEYS[task]
    everywhere = {name for keys in MODEL_KEYS.values() for name in keys}
    for name in names:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"Did you mean 'model.{near[0]}'?" if near else f"There are: {', '.join(known)}."
        if name in everywhere:
            raise UserError(f"'model.{name}' has no effect in the task {task!r}. {hint}")
        raise UserError(f"unknown key 'model.{name}'. {hint}")
