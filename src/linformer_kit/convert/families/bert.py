"""BERT, and what the families that are built like it have in common."""

from __future__ import annotations

from ..family import Family, Head

SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
    "type_vocab_size": "type_vocab_size",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_eps",
    "classifier_dropout": "classifier_dropout",
}
REQUIRED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}
EMBEDDINGS = {
    "embeddings.embed_tokens.weight": "embeddings.word_embeddings.weight",
    "embeddings.positions.weight": "embeddings.position_embeddings.weight",
    "embeddings.token_types.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.norm.*": "embeddings.LayerNorm.*",
}
LAYERS = {
    "encoder.layers.{i}.attention.q_proj.*": "encoder.layer.{i}.attention.self.query.*",
    "encoder.layers.{i}.attention.k_proj.*": "encoder.layer.{i}.attention.self.key.*",
    "encoder.layers.{i}.attention.v_proj.*": "encoder.layer.{i}.attention.self.value.*",
    "encoder.layers.{i}.attention.out_proj.*": "encoder.layer.{i}.attention.output.dense.*",
    "encoder.layers.{i}.attention_norm.*": "encoder.layer.{i}.attention.output.LayerNorm.*",
    "encoder.layers.{i}.feed_forward.w_1.*": "encoder.layer.{i}.intermediate.dense.*",
    "encoder.layers.{i}.feed_forward.w_2.*": "encoder.layer.{i}.output.dense.*",
    "encoder.layers.{i}.feed_forward_norm.*": "encoder.layer.{i}.output.LayerNorm.*",
}
POOLER = {"pooler.dense.*": "pooler.dense.*"}
TOKENS = Head(ours="LinformerForTokenClassification", tensors={"classifier.*": "classifier.*"})
SPANS = Head(ours="LinformerForQuestionAnswering", tensors={"qa_outputs.*": "qa_outputs.*"})

BERT = Family(
    model_types=("bert",),
    prefix="bert.",
    sizes=SIZES,
    required=REQUIRED,
    tensors=EMBEDDINGS | LAYERS,
    pooler=POOLER,
    heads={
        "ForMaskedLM": Head(
            ours="LinformerForMaskedLM",
            tensors={
                "transform.dense.*": "cls.predictions.transform.dense.*",
                "transform.norm.*": "cls.predictions.transform.LayerNorm.*",
                "lm_head.*": "cls.predictions.decoder.*",
            },
        ),
        "ForSequenceClassification": Head(
            ours="LinformerForSequenceClassification",
            tensors={
                "classifier.dense.*": "bert.pooler.dense.*",
                "classifier.out_proj.*": "classifier.*",
            },
        ),
        "ForMultipleChoice": Head(
            ours="LinformerForMultipleChoice",
            tensors={
                "classifier.dense.*": "bert.pooler.dense.*",
                "classifier.out_proj.*": "classifier.*",
            },
        ),
        "ForTokenClassification": TOKENS,
        "ForQuestionAnswering": SPANS,
    },
    unused=("cls.predictions.bias", "embeddings.position_ids"),
)
