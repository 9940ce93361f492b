"""ELECTRA: BERT with narrower embeddings. The discriminator's own head is not an encoder's task."""

from __future__ import annotations

from ..family import Family, Head
from .bert import EMBEDDINGS, LAYERS, REQUIRED, SIZES, SPANS, TOKENS
from .roberta import CLASSIFIER

ELECTRA = Family(
    model_types=("electra",),
    prefix="electra.",
    sizes=SIZES | {"embedding_size": "embedding_size"},
    required=REQUIRED,
    tensors=EMBEDDINGS | LAYERS | {"embeddings.to_hidden.*": "embeddings_project.*"},
    heads={
        "ForMaskedLM": Head(
            ours="LinformerForMaskedLM",
            tensors={
                "transform.dense.*": "generator_predictions.dense.*",
                "transform.norm.*": "generator_predictions.LayerNorm.*",
                "lm_head.*": "generator_lm_head.*",
            },
            options={"lm_act": "gelu"},  # whatever hidden_act says
        ),
        "ForSequenceClassification": Head(
            ours="LinformerForSequenceClassification",
            tensors=CLASSIFIER,
            options={"classifier_act": "gelu"},
        ),
        "ForTokenClassification": TOKENS,
        "ForQuestionAnswering": SPANS,
    },
    unused=("embeddings.position_ids",),
)
