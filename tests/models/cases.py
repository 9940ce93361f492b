"""Every model class, tiny, with inputs it takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from linformer_kit import models
from linformer_kit.models import LinformerConfig

VOCABULARY = 29
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 24,
    "k": 6,
    "num_slots": 3,
    "decoder_window": 4,
    "num_labels": 3,
    "loss_chunk": 5,
    "decoder_start_token_id": 1,
    "eos_token_id": 2,
}


CAUSAL = ("LinformerDecoderModel", "LinformerForCausalLM")


class Case(NamedTuple):
    """A model class and how it is called."""

    model: type
    auto: Any
    kind: str  # what its labels are

    def build(self, **options: Any) -> Any:
        torch.manual_seed(0)
        causal = {"window": 4} if self.model.__name__ in CAUSAL else {}
        return self.model(LinformerConfig(**SMALL | causal | options)).eval()

    def inputs(self, batch: int = 2, length: int = 20) -> dict[str, Tensor]:
        """With padding on the right of the second sample."""
        shape = (batch, 3, length) if self.kind == "choice" else (batch, length)
        mask = torch.ones(shape, dtype=torch.long)
        mask[1, ..., length - 5 :] = 0
        return {"input_ids": tokens(*shape), "attention_mask": mask}

    def labels(self, batch: int = 2, length: int = 20) -> dict[str, Tensor]:
        if self.kind == "tokens":
            labels = tokens(batch, length, seed=1)
            return {"labels": labels.masked_fill(labels % 3 == 0, -100)}
        if self.kind == "classes":
            return {"labels": tokens(batch, length, seed=1) % 3}
        if self.kind == "span":
            return {
                "start_positions": torch.tensor([3, 1]),
                "end_positions": torch.tensor([7, 2]),
            }
        return {"labels": torch.tensor([2, 0])} if self.kind in ("class", "choice") else {}


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    case.model.__name__: case
    for case in (
        Case(models.LinformerModel, AutoModel, "none"),
        Case(models.LinformerForMaskedLM, AutoModelForMaskedLM, "tokens"),
        Case(
            models.LinformerForSequenceClassification, AutoModelForSequenceClassification, "class"
        ),
        Case(models.LinformerForTokenClassification, AutoModelForTokenClassification, "classes"),
        Case(models.LinformerForQuestionAnswering, AutoModelForQuestionAnswering, "span"),
        Case(models.LinformerForMultipleChoice, AutoModelForMultipleChoice, "choice"),
        Case(models.LinformerForCausalLM, AutoModelForCausalLM, "tokens"),
        Case(models.LinformerForConditionalGeneration, AutoModelForSeq2SeqLM, "tokens"),
    )
}
WITH_LOSS = [name for name, case in CASES.items() if case.kind != "none"]
LANGUAGE_MODELS = [
    "LinformerForMaskedLM",
    "LinformerForCausalLM",
    "LinformerForConditionalGeneration",
]


def call(case: Case, model: Any, **more: Any) -> Any:
    """A call of a model with its inputs; of one with a decoder, with something to write too."""
    inputs = case.inputs()
    if case.auto is AutoModelForSeq2SeqLM and "labels" not in more:
        inputs["decoder_input_ids"] = tokens(2, 9, seed=2)
    return model(**inputs | more)
