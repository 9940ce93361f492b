"""LinformerConfig: flat names, checked when made, whole when read."""

from __future__ import annotations

import json

import pytest
from transformers import AutoConfig

from linformer_kit.core.plan import Plan
from linformer_kit.models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerModel,
)
from linformer_kit.models.config import own_fields

from .cases import SMALL

UNUSUAL = {
    "neighbours": 3,
    "k": [6, 4],
    "projection": "dynamic",
    "sharing": "headwise",
    "norm": "post",
    "hidden_act": "swiglu",
    "num_key_value_heads": 1,
    "head_dim": 4,
    "qkv_bias": False,
    "plan": {"shorten": "keys", "attend": "fused"},
    "pooling": "mean",
    "label_smoothing": 0.1,
}


def test_json_gives_back_what_was_written(tmp_path):
    config = LinformerConfig(**SMALL | UNUSUAL)
    config.save_pretrained(tmp_path)
    for read in (LinformerConfig, AutoConfig):
        again = read.from_pretrained(tmp_path)
        again._name_or_path = config._name_or_path
        assert again.to_dict() == config.to_dict()
    written = json.loads((tmp_path / "config.json").read_text())
    assert set(own_fields()) <= written.keys()
    assert {key: written[key] for key in UNUSUAL} == UNUSUAL


def test_every_option_reaches_the_core():
    encoder = LinformerModel(LinformerConfig(**SMALL | UNUSUAL)).encoder
    first, second = (layer.attention for layer in encoder.layers)
    assert (first.k, second.k) == (6, 4)
    assert (first.kind, first.sharing, first.num_kv_heads, first.head_dim) == (
        "dynamic",
        "headwise",
        1,
        4,
    )
    assert first.plan == Plan(shorten="keys", attend="fused")
    assert first.q_proj.bias is None
    assert first.out_proj.bias is not None
    assert encoder.final_norm is None
    assert encoder.neighbours.weight.shape == (SMALL["hidden_size"], 3)
    assert encoder.layers[0].feed_forward.activation == "swiglu"
    causal = LinformerForCausalLM(LinformerConfig(**SMALL, rotary=0.25)).linformer.decoder
    attention = causal.layers[0].attention
    assert (attention.k, attention.window, attention.rotary_dim) == (3, 4, 2)


def test_a_decoder_may_differ_from_its_encoder():
    options = {
        "decoder_vocab_size": 17,
        "decoder_hidden_size": 12,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 3,
        "decoder_intermediate_size": 20,
        "decoder_position_embedding_type": "sinusoidal",
        "context_projection": "conv",
        "context_k": 4,
        "share_embeddings": False,
    }
    model = LinformerForConditionalGeneration(LinformerConfig(**SMALL | options))
    layer = model.decoder.decoder.layers[0]
    assert len(model.decoder.decoder.layers) == 1
    assert (layer.attention.dim, layer.attention.num_heads) == (12, 3)
    assert (layer.cross_attention.kind, layer.cross_attention.k) == ("conv", 4)
    assert layer.cross_attention.context_dim == SMALL["hidden_size"]
    assert model.lm_head.weight.shape == (17, 12)
    assert model.lm_head.weight is model.decoder.embeddings.embed_tokens.weight


REFUSED = [
    ({"hidden_size": "wide"}, "hidden_size.*expected int.*'wide'"),
    ({"vocab_size": 0}, "vocab_size must be at least 1: got 0"),
    ({"num_attention_heads": 3}, "num_attention_heads: got hidden_size=16, num_attention_heads=3"),
    ({"k": 30}, "got k=30, max_position_embeddings=24"),
    ({"k": [1, 2, 3]}, r"one for each of the 2 layers: got 3, \[1, 2, 3\]"),
    ({"k": None}, "needs k, the number of rows to shorten to: got k=None"),
    ({"projection": "liner"}, "got 'liner'. Did you mean 'linear'"),
    ({"sharing": "heads"}, "sharing must be one of .*got 'heads'"),
    ({"hidden_act": "gelu_new"}, "hidden_act must be one of 'gelu', 'relu', 'swiglu': got"),
    ({"norm": "none"}, "norm must be one of 'pre', 'post': got 'none'"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be at least 0 and below 1: got 1.0"),
    ({"label_smoothing": -0.1}, "label_smoothing must be at least 0 and below 1: got -0.1"),
    ({"pooling": "sum"}, "pooling must be one of 'cls', 'mean', 'max': got 'sum'"),
    (
        {"position_embedding_type": "rotary"},
        "position_embedding_type must be .*got 'rotary'",
    ),
    ({"plan": {"shorten": "input"}}, "plan must say .*got {'shorten': 'input'}"),
    ({"window": 0, "is_decoder": True}, "window must be at least 1: got 0"),
    ({"num_slots": -1, "is_decoder": True}, "num_slots must be at least 0: got -1"),
    ({"rotary": 1.5, "is_decoder": True}, "rotary is a fraction .*got 1.5"),
    ({"feature_size": 3, "is_decoder": True}, "a causal model reads tokens: got feature_size=3"),
    ({"neighbours": 2}, "neighbours must be an odd number .*got 2. Use 3"),
    ({"neighbours": 3, "is_decoder": True}, "must not see the later ones: got neighbours=3"),
    (
        {"is_encoder_decoder": True, "decoder_vocab_size": 9},
        "got 29 and decoder_vocab_size=9. Pass share_embeddings=False",
    ),
    ({"hiden_size": 8}, "has no 'hiden_size': got hiden_size=8. Did you mean 'hidden_size'"),
    ({"num_beams": 4}, "num_beams=4. It belongs to generation"),
    ({"loss_chunk": 1.5}, "loss_chunk.*expected int.*1.5"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings.*'yes'"),
    ({"embedding_norm": 1.5}, "embedding_norm.*1.5"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused_with_what_was_received(options, message):
    with pytest.raises(Exception, match=f"(?s){message}"):
        LinformerConfig(**SMALL | options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(spiral=3), "has no 'spiral': got spiral=3.*another version"),
        (lambda values: values.pop("window"), "lacks 'window': it was written by another version"),
    ],
    ids=["a newer version's key", "an older version's lack"],
)
def test_a_file_of_another_version_is_refused(change, message, tmp_path):
    LinformerConfig(**SMALL).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    for read in (LinformerConfig, AutoConfig):
        with pytest.raises(ValueError, match=message):
            read.from_pretrained(tmp_path)


def test_what_transformers_adds_to_a_config_is_taken():
    config = LinformerConfig(**SMALL)
    config.architectures = ["LinformerModel"]
    config._name_or_path = "somewhere"
    again = LinformerConfig.from_dict(config.to_dict())
    assert again.num_labels == 3
    assert LinformerConfig.from_dict(config.to_dict(), num_labels=5).num_labels == 5


def test_one_configuration_serves_every_model_unchanged():
    config = LinformerConfig(**SMALL)
    before = config.to_dict()
    for model in (LinformerModel, LinformerForCausalLM, LinformerForConditionalGeneration):
        model(config)
    assert config.to_dict() == before
