"""Small models of every class, the same each time."""

from __future__ import annotations

import torch

from linformer_kit import models

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "k": 4,
    "num_slots": 4,
    "window": 4,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.3,  # so that what is likeliest is clear
}
ENCODERS = [
    "LinformerModel",
    "LinformerForMaskedLM",
    "LinformerForSequenceClassification",
    "LinformerForTokenClassification",
    "LinformerForQuestionAnswering",
    "LinformerForMultipleChoice",
    "LinformerForEmbedding",
]
CAUSAL = ["LinformerDecoderModel", "LinformerForCausalLM"]
SEQ2SEQ = ["LinformerSeq2SeqModel", "LinformerForConditionalGeneration"]


def tiny(name: str, **options) -> torch.nn.Module:
    torch.manual_seed(0)
    if name in SEQ2SEQ:
        options = {"decoder_start_token_id": 1} | options
    return getattr(models, name)(models.LinformerConfig(**SIZES | options)).eval()


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SIZES["vocab_size"], (batch, length), generator=generator)
