"""From a configuration to a model: the one place where both meet."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel, set_seed

from ..config.schema import LABELLED
from ..errors import UserError
from ..machine_memory import total_memory
from ..measure import quantities
from ..models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForEmbedding,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from ..config.schema import RunConfig, Task
    from ..data.prepare import Prepared

MODELS: dict[Task, type[PreTrainedModel]] = {
    "mlm": LinformerForMaskedLM,
    "clm": LinformerForCausalLM,
    "classify": LinformerForSequenceClassification,
    "tag": LinformerForTokenClassification,
    "embed": LinformerForEmbedding,
    "translate": LinformerForConditionalGeneration,
}


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
    if config.task in LABELLED:
        names = meta["labels"]
        options["id2label"] = dict(enumerate(names))
        options["label2id"] = {name: place for place, name in enumerate(names)}
    if config.task == "classify":
        options["feature_size"] = meta["feature_size"]
    if config.task == "embed" and "pooling" not in config.model.options:
        options["pooling"] = "mean"
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
        raise _refused(error) from error


def check_memory(
    config: RunConfig,
    *,
    parameters: int | None = None,
    mean_length: float = 1.0,
    made: LinformerConfig | None = None,
) -> None:
    """Refuse a training that cannot fit into the memory of this machine.

    A lower bound: weights, gradients and Adam's two moments in float32, and of the activations the
    hidden states alone, for rows of the mean length. Without `parameters`, those of the matrices
    of the layers are counted. With model.from the sizes are those of the configuration `made` of
    the folder.
    """
    if config.model.start is not None and made is None:
        return  # not known yet
    options = config.model.options if made is None else made.to_dict()
    width = int(options.get("hidden_size") or LinformerConfig.hidden_size)
    layers = int(options.get("num_hidden_layers") or LinformerConfig.num_hidden_layers)
    if parameters is None:
        hidden = int(options.get("intermediate_size") or LinformerConfig.intermediate_size)
        parameters = layers * (4 * width * width + 2 * width * hidden)
        if config.task != "clm" and options.get("position_embedding_type") in (None, "learned"):
            parameters += config.data.max_length * width
    tokens = int(config.train.batch_size // config.train.accumulate * mean_length)
    kept = 2 if config.train.gradient_checkpointing else layers + 1
    shards = int(os.environ.get("WORLD_SIZE", "1"))
    needed = 16 * parameters // shards + 4 * tokens * width * kept // shards
    if needed > total_memory():
        raise UserError(
            f"this training needs at least {needed / 1e9:,.1f} GB ({parameters:,} parameters, "
            f"{quantities.count(tokens, 'token')} a batch): this machine has "
            f"{total_memory() / 1e9:,.1f} GB. Make "
            "model.hidden_size, model.num_hidden_layers, data.max_length or train.batch_size "
            "smaller, or raise train.accumulate."
        )


def build_model(
    config: RunConfig, prepared: Prepared, tokenizer: PreTrainedTokenizerFast | None
) -> PreTrainedModel:
    """A new model whose weights follow from the seed."""
    made = model_config(config, prepared, tokenizer)
    kind = MODELS[config.task]
    counts = prepared.meta["parts"]["train"]
    read = counts["tokens"] - counts["cut_tokens"]
    try:
        with torch.device("meta"):  # sizes without memory
            sizes = [parameter.numel() for parameter in kind(made).parameters()]
    except (ValueError, TypeError) as error:
        raise _refused(error) from error
    check_memory(config, parameters=sum(sizes), mean_length=read / max(counts["rows"], 1))
    set_seed(config.seed)
    try:
        model = kind(made)
    except (ValueError, TypeError) as error:
        raise _refused(error) from error
    set_loss(model, config)
    return model


def set_loss(model: PreTrainedModel, config: RunConfig) -> None:
    """What the loss of an embedding model depends on, beyond the weights."""
    if not isinstance(model, LinformerForEmbedding):
        return
    width, sizes = model.config.hidden_size, tuple(config.train.matryoshka)
    if sizes and max(sizes) != width:
        raise UserError(
            f"the largest of train.matryoshka must be model.hidden_size = {width}, so that the "
            f"whole vector is trained too: got {max(sizes)}."
        )
    model.matryoshka, model.scale = sizes, config.train.scale


def _refused(error: Exception) -> UserError:
    """What the model's configuration says, with the name of the length in a run's configuration."""
    text = " ".join(str(error).split())
    return UserError(f"model: {text.replace('max_position_embeddings', 'data.max_length')}")
