"""Gradient checkpointing: transformers finds the layers, and they run again in backward."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch.testing import assert_close
from transformers.modeling_layers import GradientCheckpointingLayer

from linformer_kit.models import LinformerConfig

from .cases import CASES, SMALL, call

EVERY = pytest.mark.parametrize("name", CASES)


def loss_of(case, model):
    if case.kind == "none":
        return call(case, model).last_hidden_state.square().sum()
    return model(**case.inputs() | case.labels()).loss


@EVERY
@pytest.mark.parametrize("given", [None, {"use_reentrant": False}])
def test_checkpointed_layers_are_found_and_run_twice(name, given):
    case = CASES[name]
    model = case.build().train()
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    assert len(layers) == (4 if name == "LinformerForConditionalGeneration" else 2)
    assert {type(layer).__name__ for layer in layers} <= set(model._no_split_modules)
    for enabled in (True, False):
        if enabled:
            model.gradient_checkpointing_enable(given)
        else:
            model.gradient_checkpointing_disable()
        for layer in layers:
            with mock.patch.object(layer, "forward", wraps=layer.forward) as forward:
                loss_of(case, model).backward()
            assert forward.call_count == 1 + enabled  # neither none, nor nested checkpoints


@EVERY
def test_every_module_with_the_flag_is_switched_on_and_off(name):
    model = CASES[name].build()

    def flags():
        flagged = (m for m in model.modules() if hasattr(m, "gradient_checkpointing"))
        return {module.gradient_checkpointing for module in flagged}

    assert flags() == {False}
    model.gradient_checkpointing_enable()
    assert flags() == {True}
    model.gradient_checkpointing_disable()
    assert flags() == {False}


@EVERY
def test_the_configuration_may_switch_it_on_and_is_saved_without_it(name, tmp_path):
    case = CASES[name]
    config = LinformerConfig(**SMALL)
    config.gradient_checkpointing = True
    model = case.model(config)
    assert model.is_gradient_checkpointing
    model.save_pretrained(tmp_path)
    assert not case.model.from_pretrained(tmp_path).is_gradient_checkpointing


def test_attentions_and_checkpoints_together_give_the_same_gradients():
    case = CASES["LinformerForConditionalGeneration"]
    model = case.build().train()
    batch = case.inputs() | case.labels()
    found = []
    for enabled in (False, True):
        if enabled:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        output = model(**batch, output_attentions=True, output_hidden_states=True)
        weights = [*output.encoder_attentions, *output.decoder_attentions]
        (output.loss + sum(w.square().mean() for w in weights)).backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters()})
    assert_close(found[1], found[0])


def test_frozen_embeddings_let_gradients_through_to_adapters():
    case = CASES["LinformerForMaskedLM"]
    model = case.build().train()
    model.requires_grad_(False)
    weight = model.linformer.encoder.layers[0].feed_forward.w_1.weight.requires_grad_()
    model.gradient_checkpointing_enable()  # as the Trainer does, with inputs that require gradients
    loss_of(case, model).backward()
    assert torch.is_tensor(weight.grad)
