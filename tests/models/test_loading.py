"""Folders that are damaged, or of something else, say so."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM

from linformer_kit.models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)

from .cases import CASES, SMALL


@pytest.fixture
def folder(tmp_path):
    CASES["LinformerForMaskedLM"].build().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("left", [0, 5, 300, -10])
def test_a_truncated_file_of_weights_is_an_error(folder, left):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(Exception, match=r"(?i)header|incomplete|metadata|buffer|mmap|empty"):
        AutoModelForMaskedLM.from_pretrained(folder)


def test_weights_of_another_shape_are_an_error(folder):
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"intermediate_size": 40}))
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForMaskedLM.from_pretrained(folder)


def test_a_shorter_model_s_projection_is_not_taken_for_a_longer_one(folder):
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModelForMaskedLM.from_pretrained(folder, max_position_embeddings=48)


def test_the_weights_of_neighbours_start_as_the_core_s_and_come_back(tmp_path):
    model = LinformerForMaskedLM(LinformerConfig(**SMALL, neighbours=5, initializer_range=0.001))
    weight = model.linformer.encoder.neighbours.weight
    assert weight.std().item() == pytest.approx(5**-0.5, rel=0.3)
    model.save_pretrained(tmp_path)
    again = LinformerForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again.linformer.encoder.neighbours.weight, weight)


def test_decay_times_start_as_the_core_s_and_come_back(tmp_path):
    model = LinformerForMaskedLM(LinformerConfig(**SMALL, moving_average=True))
    times = model.linformer.encoder.moving_average.log_time
    assert times.max().exp().item() == pytest.approx(4096)
    with torch.no_grad():
        times.add_(0.5)
    model.save_pretrained(tmp_path)
    again = LinformerForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(again.linformer.encoder.moving_average.log_time, times)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LinformerForCausalLM, "configuration of a causal model.*Use LinformerForCausalLM"),
        (LinformerForConditionalGeneration, "an encoder with a decoder.*ConditionalGeneration"),
    ],
)
def test_a_model_with_a_decoder_is_not_read_as_an_encoder(model, message, tmp_path):
    model(LinformerConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        AutoModel.from_pretrained(tmp_path)


def test_a_new_head_on_trained_weights_keeps_the_weights(folder):
    trained = LinformerForMaskedLM.from_pretrained(folder).linformer
    model = LinformerForSequenceClassification.from_pretrained(folder, num_labels=4)
    assert model.classifier.out_proj.out_features == 4
    for name, weight in trained.named_parameters():
        assert torch.equal(model.linformer.get_parameter(name), weight)
    bare = LinformerModel.from_pretrained(folder)
    for name, weight in trained.named_parameters():
        assert torch.equal(bare.get_parameter(name), weight)


def test_a_missing_slot_map_begins_as_the_core_s(tmp_path):
    from safetensors.torch import load_file, save_file

    model = LinformerForCausalLM(LinformerConfig(**SMALL | {"hidden_size": 64, "num_slots": 32}))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    missing = "linformer.decoder.layers.0.attention.slot_proj.weight"
    del weights[missing]
    save_file(weights, path, metadata={"format": "pt"})
    loaded = LinformerForCausalLM.from_pretrained(tmp_path)
    assert loaded.get_parameter(missing).std().item() == pytest.approx(64**-0.5, rel=0.1)
    kept = missing.replace("layers.0", "layers.1")
    assert torch.equal(loaded.get_parameter(kept), model.get_parameter(kept))
