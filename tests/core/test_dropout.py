"""The fast dropout is a dropout."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit.core.cpu.dropout import keep_mask
from linformer_kit.core.dropout import dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate_scale_and_gradient(p):
    torch.manual_seed(0)
    x = torch.rand(333, 1001, requires_grad=True)
    y = dropout(x, p, True)
    kept = y != 0
    assert 1 - kept.double().mean().item() == pytest.approx(p, abs=0.005)
    assert_close(y[kept], x[kept] / (1 - p), rtol=1e-4, atol=0)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert_close(gradient, torch.where(kept, 1 / (1 - p), 0.0), rtol=1e-4, atol=0)


def test_every_position_of_a_draw_is_fair():
    torch.manual_seed(0)
    kept = keep_mask((400_000,), 0.25).view(-1, 4).double().mean(0)
    assert_close(kept, torch.full((4,), 0.75, dtype=kept.dtype), rtol=0, atol=0.006)


def test_neighbours_are_independent():
    torch.manual_seed(0)
    kept = keep_mask((1_000_000,), 0.5).double()
    for lag in (1, 2, 3, 4):
        pairs = (kept[:-lag] * kept[lag:]).mean().item()
        assert pairs == pytest.approx(0.25, abs=0.003)


def test_the_seed_decides():
    x = torch.ones(1000)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(dropout(x, 0.5, True))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_without_effect_it_returns_its_input(p, training):
    x = torch.ones(3)
    assert dropout(x, p, training) is x
