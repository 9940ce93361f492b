"""DistilBERT: BERT without token types and pooler."""

from __future__ import annotations

from ..family import Family, Head
from .bert import SPANS, TOKENS

DISTILBERT = Family(
    model_types=("distilbert",),
    prefix="distilbert.",
    sizes={
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "initializer_range": "initializer_range",
        "classifier_dropout": "seq_classif_dropout",
    },
    options={"type_vocab_size": 0, "layer_norm_eps": 1e-12},
    tensors={
        "embeddings.embed_tokens.weight": "embeddings.word_embeddings.weight",
        "embeddings.positions.weight": "embeddings.position_embeddings.weight",
        "embeddings.norm.*": "embeddings.LayerNorm.*",
        "encoder.layers.{i}.attention.q_proj.*": "transformer.layer.{i}.attention.q_lin.*",
        "encoder.layers.{i}.attention.k_proj.*": "transformer.layer.{i}.attention.k_lin.*",
        "encoder.layers.{i}.attention.v_proj.*": "transformer.layer.{i}.attention.v_lin.*",
        "encoder.layers.{i}.attention.out_proj.*": "transformer.layer.{i}.attention.out_lin.*",
        "encoder.layers.{i}.attention_norm.*": "transformer.layer.{i}.sa_layer_norm.*",
        "encoder.layers.{i}.feed_forward.w_1.*": "transformer.layer.{i}.ffn.lin1.*",
        "encoder.layers.{i}.feed_forward.w_2.*": "transformer.layer.{i}.ffn.lin2.*",
        "encoder.layers.{i}.feed_forward_norm.*": "transformer.layer.{i}.output_layer_norm.*",
    },
    heads={
        "ForMaskedLM": Head(
            ours="LinformerForMaskedLM",
            tensors={
                "transform.dense.*": "vocab_transform.*",
                "transform.norm.*": "vocab_layer_norm.*",
                "lm_head.*": "vocab_projector.*",
            },
        ),
        "ForSequenceClassification": Head(
            ours="LinformerForSequenceClassification",
            tensors={
                "classifier.dense.*": "pre_classifier.*",
                "classifier.out_proj.*": "classifier.*",
            },
            options={"classifier_act": "relu"},
        ),
        "ForMultipleChoice": Head(
            ours="LinformerForMultipleChoice",
            tensors={
                "classifier.dense.*": "pre_classifier.*",
                "classifier.out_proj.*": "classifier.*",
            },
            options={"classifier_act": "relu"},
        ),
        "ForTokenClassification": TOKENS,
        "ForQuestionAnswering": SPANS,
    },
    unused=("embeddings.position_ids",),
)
