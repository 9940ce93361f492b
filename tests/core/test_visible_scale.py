"""The scale of rows that lack positions, also where what is left has almost no weight."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit import LinformerAttention, Plan
from linformer_kit.core.visible_scale import MAX_SCALE, visible_scale

from .oracle import answer

MASK = torch.tensor([[True] * 6, [True] + [False] * 5, [False] * 6])


def layer_with(projection: str, visible: float, *, shorten: str) -> LinformerAttention:
    """One position of the second sample is visible: its weights in E are `visible` of the rest."""
    torch.manual_seed(0)
    layer = LinformerAttention(
        dim=4, num_heads=2, max_length=6, k=2, projection=projection, plan=Plan(shorten, "fused")
    ).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    with torch.no_grad():
        layer.projection.weight[..., 0] = visible
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shorten", ["input", "keys"])
@pytest.mark.parametrize("visible", [0.0, 1e-30, -1e-12, 1e-7, -1e-5, 4e-5, 1e-3])
@pytest.mark.parametrize("projection", ["linear", "fixed", "conv"])
def test_almost_no_visible_weight_is_as_the_reference_says(projection, visible, shorten, dtype):
    layer = layer_with(projection, visible, shorten=shorten).to(dtype)
    exact = copy.deepcopy(layer).double()
    x = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1), dtype=dtype)
    ours, expected = x.requires_grad_(), x.detach().double().requires_grad_()
    y = layer(ours, mask=MASK)
    reference, _ = answer(exact, expected, mask=MASK)
    rounding = 1e-7 if dtype == torch.float64 else MAX_SCALE * torch.finfo(dtype).eps
    near = {"rtol": rounding, "atol": 1e-7 if dtype == torch.float64 else 1e-4}
    assert_close(y.double(), reference, **near)
    y.sin().sum().backward()
    reference.sin().sum().backward()
    assert_close(ours.grad.double(), expected.grad, **near)
    for mine, theirs in zip(layer.parameters(), exact.parameters(), strict=True):
        zero = torch.zeros(mine.shape, dtype=torch.float64)
        found = zero if mine.grad is None else mine.grad.double()
        assert_close(found, zero if theirs.grad is None else theirs.grad, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("projection", ["linear", "fixed", "conv"])
def test_a_row_of_zeros_is_not_scaled(projection, dtype):
    layer = layer_with(projection, 0.5, shorten="input").to(dtype)
    with torch.no_grad():
        rows = layer.projection.weight
        (rows if projection == "conv" else rows[:, :, 0]).zero_()
    exact = copy.deepcopy(layer).double()
    x = torch.randn(3, 6, 4, dtype=dtype)
    y, (reference, _) = layer(x, mask=MASK), answer(exact, x.double(), mask=MASK)
    assert_close(y.double(), reference, rtol=1e-5, atol=1e-5)
    y.sum().backward()
    reference.sum().backward()
    for mine, theirs in zip(layer.parameters(), exact.parameters(), strict=True):
        if theirs.grad is not None:
            assert mine.grad.isfinite().all()
            assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


def test_the_scale_is_bounded_and_grows_up_to_the_bound():
    whole = torch.ones(400, dtype=torch.float64)
    visible = torch.logspace(0, -20, 400, dtype=torch.float64)
    scale = visible_scale(whole, visible)
    assert_close(scale, visible.rsqrt().clamp_max(MAX_SCALE))
    assert torch.finfo(torch.float16).max > MAX_SCALE
    assert visible_scale(torch.zeros(1), torch.zeros(1)).item() == 1.0


def test_no_visible_weight_gives_a_row_of_zeros():
    layer = layer_with("linear", 0.0, shorten="input")
    x = torch.randn(1, 6, 4, dtype=torch.float64)
    key = layer.projection(x, MASK[1:2]).compress_input(x * MASK[1:2, :, None])
    assert not key.any()


@pytest.mark.parametrize("visible", [0.0, 1e-4])
def test_float16_holds_the_scale(visible):
    layer = layer_with("linear", visible, shorten="input").half()
    x = torch.randn(3, 6, 4, dtype=torch.float16)
    y = layer(x, mask=MASK)
    assert y.isfinite().all()


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_under_autocast_the_scale_is_computed_in_the_precision_of_e(kind):
    """In float16 the squares of E would be rounded, and their gradients overflow."""
    torch.manual_seed(0)
    layer = LinformerAttention(
        dim=8, num_heads=2, max_length=512, k=16, projection=kind, plan=Plan("input", "fused")
    )
    x = torch.randn(2, 500, 8)
    mask = torch.ones(2, 500, dtype=torch.bool)
    mask[1, 1:] = False
    with torch.no_grad():
        expected = layer.projection(x, mask).scale
        with torch.autocast("cpu", dtype=torch.float16):
            found = layer.projection(x, mask).scale
    assert torch.equal(found, expected)
