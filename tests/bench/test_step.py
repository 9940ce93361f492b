"""Steps: inference leaves no graph, training reaches the weights and the input."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.bench.implementations import IMPLEMENTATIONS, build
from linformer_kit.bench.settings import Point
from linformer_kit.bench.step import make_input, make_step, rate_in

POINT = Point(dim=8, num_heads=2, k=2, length=6)


def test_the_input_comes_from_the_seed():
    assert torch.equal(make_input(POINT, seed=4), make_input(POINT, seed=4))
    assert not torch.equal(make_input(POINT, seed=4), make_input(POINT, seed=5))


def test_inference_needs_no_gradients_and_drops_nothing():
    model = build("linformer-kit", "encoder", POINT, dropout=0.5, seed=0)
    step = make_step(model, make_input(POINT, seed=0), "inference")
    output = step()
    assert output.is_inference()
    assert torch.equal(output, step())


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_training_gives_every_weight_a_new_gradient(name):
    model = build(name, "encoder", POINT, dropout=0.0, seed=0)
    step = make_step(model, make_input(POINT, seed=0), "training")
    step()
    first = [parameter.grad.clone() for parameter in model.parameters()]
    assert all(gradient.abs().sum() > 0 for gradient in first[-2:])
    step()
    for parameter, gradient in zip(model.parameters(), first, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)  # not added to the last one


def test_training_reaches_the_input():
    class Remember(torch.nn.Module):
        def forward(self, x):
            self.seen = x
            return 2 * x

    model = Remember()
    make_step(model, make_input(POINT, seed=0), "training")()
    assert model.seen.grad is not None


def test_dropout_is_for_its_own_mode():
    assert [rate_in(mode, 0.1) for mode in ("inference", "training", "dropout")] == [0.0, 0.0, 0.1]
