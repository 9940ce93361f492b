"""LinformerConfig: flat names, checked when made, whole when read."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
import torch
from transformers import AutoConfig

from linformer_kit.core.plan import Plan
from linformer_kit.models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerModel,
)
from linformer_kit.models.config import own_fields
from linformer_kit.models.rules import RULES

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
    causal = LinformerForCausalLM(LinformerConfig(**SMALL, window=4, rotary=0.25)).linformer.decoder
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
    ({"hidden_size": "wide"}, r"hidden_size must be a whole number: got 'wide' \(str\)"),
    ({"vocab_size": 0}, "vocab_size must be at least 1: got 0"),
    ({"num_attention_heads": 3}, "num_attention_heads: got hidden_size=16, num_attention_heads=3"),
    ({"k": 30}, "got k=30, max_position_embeddings=24"),
    ({"k": [1, 2, 3]}, r"one for each of the 2 layers: got 3, \[1, 2, 3\]"),
    ({"k": None}, "needs k, the number of compressed rows: got k=None"),
    ({"k": 0}, "k must be at least 1: got 0. Only with a window may it be 0: got window=0"),
    ({"k": [6, 0]}, "k must be at least 1: got 0"),
    ({"global_tokens": 1, "is_decoder": True}, "global tokens see all: got global_tokens=1"),
    ({"projection": "liner"}, "got 'liner'. Did you mean 'linear'"),
    ({"sharing": "heads"}, "sharing must be one of .*got 'heads'"),
    (
        {"hidden_act": "gelu_new"},
        "hidden_act must be one of 'gelu', 'gelu_tanh', 'relu', 'swiglu': got",
    ),
    ({"norm": "none"}, "norm must be one of 'pre', 'post': got 'none'"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob must be at least 0 and below 1: got 1.0"),
    ({"label_smoothing": -0.1}, "label_smoothing must be at least 0 and below 1: got -0.1"),
    ({"pooling": "sum"}, "pooling must be one of 'cls', 'mean', 'max': got 'sum'"),
    (
        {"position_embedding_type": "rotary"},
        "position_embedding_type must be .*got 'rotary'",
    ),
    ({"plan": {"shorten": "input"}}, "plan must say .*got {'shorten': 'input'}"),
    ({"plan": "foo"}, r"plan must say .*got 'foo' \(str\)"),
    ({"plan": {"shorten": "input", "attend": "x"}}, "plan.attend must be one of .*got 'x'"),
    ({"k": "abc"}, r"k must be a whole number: got 'abc' \(str\)"),
    ({"k": [6, "a"]}, r"k\[1\] must be a whole number: got 'a' \(str\)"),
    ({"layer_norm_eps": -1}, "layer_norm_eps must be above 0 and at most 1: got -1"),
    ({"num_key_value_heads": 3}, "got num_attention_heads=2, num_key_value_heads=3"),
    (
        {"hidden_size": 2**31 - 1, "intermediate_size": 2**31 - 1, "head_dim": 2**30},
        "too large for torch: got hidden_size=2147483647",
    ),
    (
        {"is_encoder_decoder": True, "decoder_num_attention_heads": 5},
        r"the decoder \(decoder_\*, context_\*\): hidden_size must be divisible by num_attention",
    ),
    (
        {"is_encoder_decoder": True, "context_projection": "linear", "context_k": 25},
        "the decoder.*got context_k=25, max_position_embeddings=24",
    ),
    ({"window": 0, "is_decoder": True}, "window must be at least 1: got 0"),
    ({"num_slots": -1, "is_decoder": True}, "num_slots must be at least 0: got -1"),
    ({"rotary": 1.5, "is_decoder": True}, "rotary must be from 0 to 1: got 1.5"),
    ({"feature_size": 3, "is_decoder": True}, "a causal model reads tokens: got feature_size=3"),
    ({"neighbours": 2}, "neighbours must be an odd number .*got 2. Use 3"),
    ({"neighbours": 3, "is_decoder": True}, "must not see the later ones: got neighbours=3"),
    ({"moving_average": True, "is_decoder": True}, "later ones: got moving_average=True"),
    (
        {"is_encoder_decoder": True, "decoder_vocab_size": 9},
        "got 29 and decoder_vocab_size=9. Pass share_embeddings=False",
    ),
    ({"hiden_size": 8}, "unexpected argument 'hiden_size'. Did you mean 'hidden_size'"),
    ({"num_beams": 4}, "unexpected argument 'num_beams'. num_beams belongs to generation"),
    ({"dim_k": 4}, "linformer-pytorch's dim_k is k here"),
    ({"d_model": 4}, "torch.nn's d_model is hidden_size here"),
    ({"seq_len": 4}, "linformer's seq_len is max_position_embeddings here"),
    ({"depth": 4}, "the core's depth is num_hidden_layers here"),
    ({"reversible": True}, "linformer's reversible has no equivalent here"),
    ({"loss_chunk": 1.5}, "loss_chunk must be a whole number: got 1.5"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be True or False: got 'yes'"),
    ({"embedding_norm": 1.5}, "embedding_norm must be True or False: got 1.5"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused_with_what_was_received(options, message):
    with pytest.raises((TypeError, ValueError), match=message) as raised:  # . is one line
        LinformerConfig(**SMALL | options)
    assert "\n" not in str(raised.value)


NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**400
NUMBERS = (-1, NAN, INFINITY, -INFINITY, HUGE, -HUGE, "abc", [None], {}, torch.zeros(3), b"1")
NEVER = {  # what no value of this type may be, beside NUMBERS
    "hidden_size": (0, 1.5, True, None),
    "layer_norm_eps": (0, 2, False, None),
    "hidden_dropout_prob": (1, 1.5, True, None),
    "rotary": (1.01, None),
    "bias": (0, 1, None),
    "k": (2.0, [6, 6.0], [[6]]),
    "hidden_act": ("", "GELU", None, True),
    "pad_token_id": (1.5, True),
    "eos_token_id": (1.5, ["a"], [-1]),
    "plan": ([], {"shorten": 1, "attend": 2}, {"shorten": ["input"], "attend": "fused"}),
    "num_labels": (0, 2.5, 10**9, None),
    "id2label": ({}, {"a": "b"}, {None: "b"}, "ab"),
    "label2id": ("ab", 3),
    "dtype": ("float33", "nn", 3),
    "architectures": ("LinformerModel", [3]),
    "problem_type": ("classification", 3),
}


@pytest.mark.parametrize("name", [name for name in RULES if name != "transformers_version"])
def test_no_field_takes_a_value_it_cannot_use(name):
    """Every field, in the constructor and when set later: one line that names the field."""
    config = LinformerConfig(**SMALL)
    message = rf"^{name}.* must .*: got "
    for value in (*NUMBERS, *NEVER.get(name, ())):
        if (name, value) == ("label2id", {}):
            continue  # no names is as good as none
        with pytest.raises((TypeError, ValueError), match=message) as built:
            LinformerConfig(**SMALL | {name: value})
        with pytest.raises((TypeError, ValueError), match=message) as later:
            setattr(config, name, value)
        for said in (str(built.value), str(later.value)):
            assert "\n" not in said
            assert len(said) < 300


def test_every_field_has_a_rule():
    fields = {field.name for field in dataclasses.fields(LinformerConfig)}
    assert fields | {"num_labels", "output_attentions"} == RULES.keys()
    for name, rule in RULES.items():
        if name in fields:
            rule(name, getattr(LinformerConfig(), name))


def test_the_check_of_absurd_sizes_takes_no_time():
    begun = time.perf_counter()
    for name in ("hidden_size", "vocab_size", "intermediate_size", "max_position_embeddings"):
        LinformerConfig(**SMALL | {name: 100_000_000})
    layers = 2**16
    LinformerConfig(
        **SMALL
        | {"num_hidden_layers": layers, "k": list(range(1, layers + 1))}
        | {"max_position_embeddings": layers}
    )
    assert time.perf_counter() - begun < 2


def test_an_attribute_of_one_s_own_is_saved_and_loaded(tmp_path):
    config = LinformerConfig(**SMALL)
    config.note = "second try"
    config.sources = {"a": [1, 2.5, None]}
    model = LinformerModel(config)
    assert model.config.note == "second try"
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["custom_attributes"] == [
        "note",
        "sources",
    ]
    for read in (LinformerConfig, AutoConfig):
        again = read.from_pretrained(tmp_path)
        assert (again.note, again.sources) == (config.note, config.sources)
        again.save_pretrained(tmp_path / "again")
        assert LinformerConfig.from_pretrained(tmp_path / "again").note == "second try"
    assert LinformerModel.from_pretrained(tmp_path).config.sources == config.sources
    assert LinformerConfig(**config.to_dict()).note == "second try"
    both = LinformerForConditionalGeneration(config)
    assert both.config.note == both.get_decoder().config.note == "second try"
    with pytest.raises(AttributeError, match="Use another name"):
        again.custom_attributes = ["note"]
    del again.note
    again.save_pretrained(tmp_path / "again")
    assert not hasattr(LinformerConfig.from_pretrained(tmp_path / "again"), "note")


def test_an_attribute_that_json_cannot_hold_is_refused_before_the_file_is_touched(tmp_path):
    config = LinformerConfig(**SMALL)
    config.save_pretrained(tmp_path)
    before = (tmp_path / "config.json").read_bytes()
    config.scale = torch.ones(3)
    with pytest.raises(TypeError, match=r"attribute 'scale' .* must be JSON: got tensor"):
        config.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == before


def test_a_subclass_may_add_fields(tmp_path):
    class Mine(LinformerConfig):
        flavour: str = "plain"

    Mine(**SMALL, flavour="salt").save_pretrained(tmp_path)
    assert Mine.from_pretrained(tmp_path).flavour == "salt"
    with pytest.raises(TypeError, match=r"Mine got unexpected argument 'flavor'. Did you mean 'fl"):
        Mine(**SMALL, flavor="salt")


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


WHOLE = LinformerConfig(**SMALL).to_dict()
DAMAGED = {
    "a newer version's key": (
        json.dumps(WHOLE | {"spiral": 3}),
        "unexpected argument 'spiral'. If it stands in a config.json.*another version",
    ),
    "an older version's lack": (
        json.dumps({name: value for name, value in WHOLE.items() if name != "rotary"}),
        "lacks 'rotary': it was written by another version",
    ),
    "nothing": ("{}", "lacks 'vocab_size', .* and [0-9]+ more: it was written by another version"),
    "a list": ("[1, 2]", r"must hold a JSON object: got \[1, 2\] \(list\)"),
    "a number": ("3", "must hold a JSON object: got 3"),
    "null": ("null", "must hold a JSON object: got None"),
    "a string": ('"abc"', "must hold a JSON object: got 'abc'"),
    "an empty file": ("", "is not valid JSON"),
    "half a file": (json.dumps(WHOLE)[:300], "is not valid JSON"),
    "no text": ("\udcff\udcfe", "is not valid JSON"),
    "nested deeply": (nested(100_000), "is not valid JSON: it is nested too deeply"),
    "a huge number": ('{"k": ' + "9" * 5000 + "}", "is not valid JSON: Exceeds the limit"),
    "another model": (json.dumps(WHOLE | {"model_type": "bert"}), "got model_type='bert'"),
    "a wrong type": (json.dumps(WHOLE | {"k": "six"}), "k must be a whole number: got 'six'"),
    "not a number": (json.dumps(WHOLE | {"rotary": NAN}), "rotary must be finite: got nan"),
    "infinity": (
        json.dumps(WHOLE | {"layer_norm_eps": {"__float__": "Infinity"}}),
        "layer_norm_eps must be finite: got inf",
    ),
    "labels": (json.dumps(WHOLE | {"id2label": [1]}), "id2label must map"),
    "dtype": (json.dumps(WHOLE | {"dtype": "float33"}), "dtype must be a type of torch"),
    "custom": (json.dumps(WHOLE | {"custom_attributes": 3}), "custom_attributes must be a list"),
}


def test_a_file_from_before_moving_averages_has_none():
    config = LinformerConfig.from_dict({k: v for k, v in WHOLE.items() if k != "moving_average"})
    assert config.moving_average is False


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_or_foreign_file_is_refused_in_one_line(kind, tmp_path):
    text, message = DAMAGED[kind]
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message) as raised:
        LinformerConfig.from_pretrained(tmp_path)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match=message):
        LinformerModel.from_pretrained(tmp_path)


def test_values_given_when_loading_must_fit(tmp_path):
    LinformerConfig(**SMALL).save_pretrained(tmp_path)
    assert LinformerConfig.from_pretrained(tmp_path, k=24).k == 24
    with pytest.raises(ValueError, match="got k=25, max_position_embeddings=24"):
        LinformerConfig.from_pretrained(tmp_path, k=25)
    assert LinformerConfig.from_json_file(tmp_path / "config.json").k == 6
    (tmp_path / "part.json").write_text('{"k": 6}')
    with pytest.raises(ValueError, match="the configuration lacks 'vocab_size'"):
        LinformerConfig.from_json_file(tmp_path / "part.json")
    for wrong in (None, [], "abc", 3):
        with pytest.raises(ValueError, match="must be a dictionary: got"):
            LinformerConfig.from_dict(wrong)
    values = LinformerConfig(**SMALL).to_dict()
    before = dict(values)
    LinformerConfig.from_dict(values, num_labels=7)
    assert values == before


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


def test_a_file_from_before_encoders_had_a_window_means_what_it_meant():
    before = LinformerConfig(**SMALL).to_dict() | {"window": 128}
    for name in ("global_tokens", "decoder_window"):
        del before[name]
    assert LinformerConfig.from_dict(before).encoder_arguments()["window"] == 0
    causal = LinformerConfig.from_dict(before | {"is_decoder": True})
    assert causal.decoder_arguments()["window"] == 128
    both = LinformerConfig.from_dict(before | {"is_encoder_decoder": True, "window": 16})
    assert both.encoder_arguments()["window"] == 0
    assert both.of_decoder().decoder_arguments()["window"] == 16


def test_the_window_of_each_kind_of_model():
    options = SMALL | {"window": 3, "global_tokens": 2, "decoder_window": 5}
    encoder = LinformerModel(LinformerConfig(**options)).encoder.layers[0].attention
    assert (encoder.window, encoder.global_tokens) == (3, 2)
    both = LinformerForConditionalGeneration(LinformerConfig(**options))
    assert both.linformer.encoder.encoder.layers[0].attention.window == 3
    assert both.linformer.decoder.decoder.layers[0].attention.window == 5
    vanilla = LinformerModel(LinformerConfig(**options | {"projection": "full"}))
    assert vanilla.encoder.layers[0].attention.window == 0
    defaults = {name: value for name, value in SMALL.items() if name != "decoder_window"}
    causal = LinformerForCausalLM(LinformerConfig(**defaults)).linformer.decoder
    assert causal.layers[0].attention.window == 128
