"""Steps reach what they train; counted FLOPs are those of the closed form."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from linformer_kit import LinformerEncoder
from linformer_kit.core.cost import encoder_flops
from linformer_kit.core.feedforward import FeedForward
from linformer_kit.evidence.bench.gemm import plans_of
from linformer_kit.evidence.bench.implementations import IMPLEMENTATIONS, build, make_input
from linformer_kit.evidence.bench.settings import Point
from linformer_kit.measure.step import TrainingStep, count_flops, layer_step

POINT = Point(dim=8, num_heads=2, k=2, length=6)


def test_inference_needs_no_gradients_and_drops_nothing():
    model = build("linformer-kit", "encoder", POINT, dropout=0.5, seed=0)
    step = layer_step(model, make_input(POINT, seed=0), "inference")
    output = step()
    assert output.is_inference()
    assert torch.equal(output, step())


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_training_gives_every_weight_a_new_gradient(name):
    model = build(name, "encoder", POINT, dropout=0.0, seed=0)
    step = layer_step(model, make_input(POINT, seed=0), "training")
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
    layer_step(model, make_input(POINT, seed=0), "training")()
    assert model.seen.grad is not None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_training_step_updates_once_for_all_its_batches(precision):
    model = torch.nn.Linear(3, 1)
    updates, kinds = [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: updates.append(model.weight.grad.clone()))

    def loss_of(batch):
        output = model(batch["x"])
        kinds.append(output.dtype)
        return output.sum()

    step = TrainingStep(model, loss_of=loss_of, optimizer=optimizer, precision=precision)
    step([{"x": torch.ones(1, 3)}, {"x": torch.full((1, 3), 2.0)}])
    torch.testing.assert_close(updates, [torch.full((1, 3), 3.0)])
    assert kinds == [getattr(torch, precision)] * 2
    assert model.weight.grad is None


def test_fused_attention_and_its_backward_pass():
    query = torch.randn(2, 3, 50, 8, requires_grad=True)
    key, value = torch.randn(2, 2, 3, 70, 8)
    product = 2 * 2 * 3 * 50 * 70 * 8
    with count_flops() as counter:
        result = F.scaled_dot_product_attention(query, key, value)
    assert counter.get_total_flops() == 2 * product
    with count_flops() as counter:
        result.sum().backward()
    assert counter.get_total_flops() == 5 * product  # the scores are computed again


@pytest.mark.parametrize(
    "options", [{"projection": "full"}, {"k": 32}, {"k": 16, "window": 16, "projection": "mean"}]
)
def test_an_encoder_has_the_flops_of_the_closed_form(options):
    encoder = LinformerEncoder(dim=64, depth=2, num_heads=4, max_length=512, ff_dim=128, **options)
    shape = encoder.shape(batch=2, length=512)
    x = torch.randn(2, 512, 64)
    with torch.no_grad(), count_flops() as fused:
        encoder.eval()(x)
    with torch.no_grad(), count_flops() as plain, sdpa_kernel(SDPBackend.MATH):
        encoder(x)
    expected = encoder_flops(shape, plans_of(shape))
    assert fused.get_total_flops() == pytest.approx(expected, rel=0.03)
    assert plain.get_total_flops() == pytest.approx(expected, rel=0.03)


def test_a_backward_pass_has_two_products_for_each_of_the_forward_pass():
    layer, x = FeedForward(dim=16, ff_dim=32), torch.randn(2, 9, 16, requires_grad=True)
    with count_flops() as counter:
        layer(x).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * (2 * 18 * 16 * 32)
