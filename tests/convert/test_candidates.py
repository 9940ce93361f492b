"""Which attention of a model can be swapped, found from its classes alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import transformers as T
from torch import nn

from linformer_kit.convert.candidates import attentions, heads_of

SWAP, CAUSAL, CROSS, LOCAL = None, "causal attention", "cross-attention", "local attention already"
RELATIVE = "its scores depend on relative positions"
OTHER = "its code does not use an attention interface that can be swapped"
SHORTENED = "its keys are shortened already"
DECODER = "causal attention or cross-attention of a decoder"


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("bert", {SWAP: 12}),
        ("albert", {SWAP: 1}),
        ("data2vec-audio", {SWAP: 12}),
        ("audio-spectrogram-transformer", {SWAP: 12}),
        ("nomic_bert", {SWAP: 12}),
        ("dinov3_vit", {SWAP: 12}),
        ("clip", {SWAP: 12, CAUSAL: 12}),
        ("owlvit", {SWAP: 12, CAUSAL: 12}),
        ("siglip2", {SWAP: 24, CROSS: 1}),
        ("moonshine", {SWAP: 6, CAUSAL: 6, CROSS: 6}),
        ("mbart", {SWAP: 12, CAUSAL: 12, CROSS: 12}),
        ("t5", {RELATIVE: 6, CAUSAL: 6, DECODER: 6}),
        ("modernbert", {SWAP: 8, LOCAL: 14}),
        ("parakeet_encoder", {RELATIVE: 24}),
        ("gpt2", {CAUSAL: 12}),
        ("swin", {LOCAL: 12}),
        ("mpnet", {OTHER: 12}),
        ("wavlm", {OTHER: 12}),
        ("segformer", {SWAP: 2, SHORTENED: 6}),
    ],
)
def test_models_of_transformers(model_type: str, expected: dict[Any, int]) -> None:
    with torch.device("meta"):
        model = T.AutoModel.from_config(T.AutoConfig.for_model(model_type))
    assert Counter(each.why_not for each in attentions(model)) == expected


def test_a_decoder_of_bert_is_left_alone() -> None:
    config = T.BertConfig(is_decoder=True, add_cross_attention=True, num_hidden_layers=1)
    with torch.device("meta"):
        found = attentions(T.BertModel(config))
    assert [each.why_not for each in found] == [CAUSAL, CROSS]


def test_a_subclass_of_torchs_attention_is_left_alone() -> None:
    class Mine(nn.MultiheadAttention):
        pass

    assert "subclass" in str(attentions(Mine(8, 2))[0].why_not)


def test_attention_with_fewer_queries_is_left_alone() -> None:
    config = T.Sam2HieraDetConfig(blocks_per_stage=[1, 1, 1, 1], num_query_pool_stages=3)
    with torch.device("meta"):
        found = attentions(T.Sam2VisionModel(T.Sam2VisionConfig(backbone_config=config)))
    assert [each.why_not for each in found] == [None, *["it has fewer queries than keys"] * 3]


def test_heads_that_differ_between_layers_are_not_told() -> None:
    class Config:
        num_heads = (3, 6)

        @property
        def num_key_value_heads(self) -> int:
            raise RuntimeError("a per-layer attribute")

    module = nn.Module()
    module.config = Config()
    assert heads_of(module) == (0, 0)
    module.num_heads = 6
    assert heads_of(module) == (6, 6)


def test_heads_that_share_keys_are_counted() -> None:
    config = T.EuroBertConfig(num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=2)
    with torch.device("meta"):
        model = T.EuroBertModel(config)
    assert heads_of(attentions(model)[0].module) == (8, 2)
