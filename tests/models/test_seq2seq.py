"""Encoder and decoder without a head, inside the one with a head, and weights of both."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from linformer_kit.models import (
    LinformerConfig,
    LinformerForConditionalGeneration,
    LinformerSeq2SeqModel,
)

from .cases import CASES, SMALL, call, tokens

CASE = CASES["LinformerForConditionalGeneration"]
TABLES = [
    {},
    {"tie_word_embeddings": False},
    {"share_embeddings": False},
    {"share_embeddings": False, "tie_word_embeddings": False},
]


@pytest.mark.parametrize("name", CASES)
def test_the_base_model_is_the_model_without_its_head(name):
    model = CASES[name].build()
    base = model.base_model
    assert (base is model) == (name == "LinformerModel")
    given = CASES[name].inputs()
    if CASES[name].kind == "choice":
        given = {key: value.flatten(0, 1) for key, value in given.items()}
    hidden = call(CASES[name], base, **given)[0]
    assert hidden.shape[-1] == SMALL["hidden_size"]


def test_the_head_reads_the_rows_of_the_base_model():
    model = CASE.build()
    output = call(CASE, model)
    rows = call(CASE, model.base_model).last_hidden_state
    assert_close(model.lm_head(rows), output.logits)
    assert model.get_encoder() is model.encoder is model.base_model.encoder
    assert model.get_decoder() is model.decoder is model.base_model.decoder


@pytest.mark.parametrize("options", TABLES)
def test_base_and_head_load_each_other_s_weights(options, tmp_path):
    model = CASE.build(**options)
    model.base_model.save_pretrained(tmp_path / "base")
    model.save_pretrained(tmp_path / "whole")
    base, info = LinformerSeq2SeqModel.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not info["missing_keys"]
    assert_close(call(CASE, base)[0], call(CASE, model.base_model)[0])
    whole, info = LinformerForConditionalGeneration.from_pretrained(
        tmp_path / "base", output_loading_info=True
    )
    tied = options.get("tie_word_embeddings", True)
    assert info["missing_keys"] == (set() if tied else {"lm_head.weight"})
    assert_close(call(CASE, whole.base_model)[0], call(CASE, model.base_model)[0])
    shares = options.get("share_embeddings", True)
    for part in (base, whole.base_model):
        one = (
            part.encoder.get_input_embeddings().weight is part.decoder.get_input_embeddings().weight
        )
        assert one == shares


@pytest.mark.parametrize("options", TABLES)
def test_weights_saved_without_the_prefix_are_read(options, tmp_path):
    """As they were before the base model had a class of its own."""
    model = CASE.build(**options)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = {name.removeprefix("linformer."): w for name, w in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
    loaded, info = LinformerForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(info.values())
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)


def test_the_base_model_can_be_resized_and_its_parts_know():
    model = LinformerSeq2SeqModel(LinformerConfig(**SMALL))
    model.resize_token_embeddings(40, mean_resizing=False)
    ids = torch.full((2, 5), 39)
    assert model(ids, decoder_input_ids=ids).last_hidden_state.shape == (2, 5, 16)
    parts = (model, model.encoder, model.decoder)
    assert {part.config.vocab_size for part in parts} == {40}


def test_positional_arguments_have_the_order_of_transformers():
    model = CASE.build()
    ids, mask = CASE.inputs()["input_ids"], CASE.inputs()["attention_mask"]
    written, real = tokens(2, 9, seed=2), torch.ones(2, 9)
    expected = call(CASE, model)
    assert_close(model(ids, mask, written, real).logits, expected.logits)
