"""From a configuration to a model: the one place where both meet."""

from __future__ import annotations

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
        raise _refused(error) from error


def build_model(
    config: RunConfig, prepared: Prepared, tokenizer: PreTrainedTokenizerFast | None
) -> PreTrainedModel:
    """A new model whose weights follow from the seed."""
    made = model_config(config, prepared, tokenizer)
    set_seed(config.seed)
    try:
        return MODELS[config.task](made)
    except (ValueError, TypeError) as error:
        raise _refused(error) from error


def _refused(error: Exception) -> UserError:
    """What the model's configuration says, with the name of the length in a run's configuration."""
    text = " ".join(str(error).split())
    return UserError(f"model: {text.replace('max_position_embeddings', 'data.max_length')}")
