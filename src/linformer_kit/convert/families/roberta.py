"""RoBERTa, XLM-RoBERTa and CamemBERT. Positions are counted from padding_idx + 1 = 2."""

from __future__ import annotations

from ..family import Family, Head
from .bert import EMBEDDINGS, LAYERS, POOLER, REQUIRED, SIZES, SPANS, TOKENS

CLASSIFIER = {
    "classifier.dense.*": "classifier.dense.*",
    "classifier.out_proj.*": "classifier.out_proj.*",
}

ROBERTA = Family(
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta.",
    sizes=SIZES,
    required=REQUIRED | {"pad_token_id": 1},
    tensors=EMBEDDINGS | LAYERS,
    pooler=POOLER,
    first_position=2,
    heads={
        "ForMaskedLM": Head(
            ours="LinformerForMaskedLM",
            tensors={
                "transform.dense.*": "lm_head.dense.*",
                "transform.norm.*": "lm_head.layer_norm.*",
                "lm_head.*": "lm_head.decoder.*",
            },
            options={"lm_act": "gelu"},  # whatever hidden_act says
        ),
        "ForSequenceClassification": Head(
            ours="LinformerForSequenceClassification", tensors=CLASSIFIER
        ),
        "ForMultipleChoice": Head(
            ours="LinformerForMultipleChoice",
            tensors={
                "classifier.dense.*": "roberta.pooler.dense.*",
                "classifier.out_proj.*": "classifier.*",
            },
        ),
        "ForTokenClassification": TOKENS,
        "ForQuestionAnswering": SPANS,
    },
    unused=("lm_head.bias", "embeddings.position_ids"),
)
