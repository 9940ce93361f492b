"""ALBERT: one layer's weights for all layers. Each layer of the Linformer gets a copy of them."""

from __future__ import annotations

from ..family import Family, Head
from .bert import EMBEDDINGS, REQUIRED, SIZES, SPANS, TOKENS

_LAYER = "encoder.albert_layer_groups.0.albert_layers.0."

ALBERT = Family(
    model_types=("albert",),
    prefix="albert.",
    sizes=SIZES
    | {"embedding_size": "embedding_size", "classifier_dropout": "classifier_dropout_prob"},
    required=REQUIRED | {"num_hidden_groups": 1, "inner_group_num": 1},
    tensors=EMBEDDINGS
    | {
        "embeddings.to_hidden.*": "encoder.embedding_hidden_mapping_in.*",
        "encoder.layers.{i}.attention.q_proj.*": _LAYER + "attention.query.*",
        "encoder.layers.{i}.attention.k_proj.*": _LAYER + "attention.key.*",
        "encoder.layers.{i}.attention.v_proj.*": _LAYER + "attention.value.*",
        "encoder.layers.{i}.attention.out_proj.*": _LAYER + "attention.dense.*",
        "encoder.layers.{i}.attention_norm.*": _LAYER + "attention.LayerNorm.*",
        "encoder.layers.{i}.feed_forward.w_1.*": _LAYER + "ffn.*",
        "encoder.layers.{i}.feed_forward.w_2.*": _LAYER + "ffn_output.*",
        "encoder.layers.{i}.feed_forward_norm.*": _LAYER + "full_layer_layer_norm.*",
    },
    pooler={"pooler.dense.*": "pooler.*"},
    heads={
        "ForMaskedLM": Head(
            ours="LinformerForMaskedLM",
            tensors={
                "transform.dense.*": "predictions.dense.*",
                "transform.norm.*": "predictions.LayerNorm.*",
                "lm_head.*": "predictions.decoder.*",
            },
        ),
        "ForSequenceClassification": Head(
            ours="LinformerForSequenceClassification",
            tensors={
                "classifier.dense.*": "albert.pooler.*",
                "classifier.out_proj.*": "classifier.*",
            },
        ),
        "ForTokenClassification": TOKENS,
        "ForQuestionAnswering": SPANS,
    },
    unused=("predictions.bias", "embeddings.position_ids"),
)
