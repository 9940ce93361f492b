"""From a configuration to a model: the one place where both meet."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, set_seed

from ..errors import UserError
from ..models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..config.schema import RunConfig, Task
    from ..data.prepare import Prepared

MODELS: dict[Task, type[PreTrainedModel]] = {
    "mlm": LinformerForMaskedLM,
    "clm": LinformerForCausalLM,
    "classify": LinformerForSequenceClassification,
    "translate": LinformerForConditionalGeneration,
}

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
ENCODER = ("k", "projection", "sharing", "keep_scale", "dropout_kind", "plan", "neighbours")
CAUSAL = ("causal_attention", "num_slots", "window", "rotary")
WORDS = ("tie_word_embeddings", "loss_chunk")
DECODER = (
    "decoder_num_hidden_layers",
    "decoder_num_attention_heads",
    "decoder_num_key_value_heads",
    "decoder_head_dim",
    "decoder_intermediate_size",
    "decoder_position_embedding_type",
    "context_projection",
    "context_k",
    "context_sharing",
    "share_embeddings",
)
MODEL_KEYS: dict[Task, tuple[str, ...]] = {
    "mlm": LAYERS + ENCODER + WORDS,
    "clm": LAYERS + CAUSAL + WORDS,
    "classify": (*LAYERS, *ENCODER, "pooling", "classifier_dropout"),
    "translate": LAYERS + ENCODER + CAUSAL + WORDS + DECODER,
}


def check_model_keys(task: Task, names: list[str]) -> None:
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


def model_config(
    config: RunConfig, prepared: Prepared, tokenizer: PreTrainedTokenizerFast | None
) -> LinformerConfig:
    """What the data say and what the user says, as the model's configuration."""
    meta = prepared.meta
    options: dict[str, Any] = {
        "max_position_embeddings": config.data.max_length,
        "type_vocab_size": 0,
    }
    if tokenizer is not None:
        options |= {
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        }
    if config.task == "classify":
        names = meta["labels"]
        options["id2label"] = dict(enumerate(names))
        options["label2id"] = {name: place for place, name in enumerate(names)}
        options["feature_size"] = meta["feature_size"]
    if config.task == "clm":
        options["is_decoder"] = True
    if config.task == "translate":
        assert tokenizer is not None
        start = tokenizer.bos_token_id
        options["is_encoder_decoder"] = True
        options["decoder_start_token_id"] = tokenizer.eos_token_id if start is None else start
        options["label_smoothing"] = config.train.label_smoothing
    try:
        return LinformerConfig(**options, **config.model.options)
    except (ValueError, TypeError) as error:
        raise UserError(f"model: {' '.join(str(error).split())}") from error


def build_model(
    config: RunConfig, prepared: Prepared, tokenizer: PreTrainedTokenizerFast | None
) -> PreTrainedModel:
    """A new model whose weights follow from the seed."""
    made = model_config(config, prepared, tokenizer)
    set_seed(config.seed)
    try:
        return MODELS[config.task](made)
    except (ValueError, TypeError) as error:
        raise UserError(f"model: {' '.join(str(error).split())}") from error
