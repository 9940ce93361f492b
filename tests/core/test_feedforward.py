"""The blocked feed-forward equals the plain one, in outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit.core.activations import ACTIVATIONS
from linformer_kit.core.cpu import feedforward
from linformer_kit.core.feedforward import FeedForward


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_blocks_equal_the_whole(monkeypatch, activation, bias):
    monkeypatch.setattr(feedforward, "rows_in_block", lambda width: 2)
    torch.manual_seed(0)
    layer = FeedForward(dim=5, ff_dim=8, activation=activation, bias=bias).double()
    x = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    plain = layer.w_2(ACTIVATIONS[activation](layer.w_1(x)))
    ours = layer(x)
    assert_close(ours, plain)
    upstream = torch.randn_like(plain)
    leaves = (x, *layer.parameters())
    assert_close(
        torch.autograd.grad(ours, leaves, upstream), torch.autograd.grad(plain, leaves, upstream)
    )
    with torch.no_grad():
        assert_close(layer(x), plain)


def test_gradients_with_dropout_match_finite_differences(monkeypatch):
    monkeypatch.setattr(feedforward, "rows_in_block", lambda width: 2)
    layer = FeedForward(dim=4, ff_dim=6, dropout=0.4).double().train()
    x = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)

    def with_one_mask(*leaves: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(7)
        return layer(leaves[0])

    assert torch.autograd.gradcheck(with_one_mask, (x, *layer.parameters()))


def test_dropout_acts_on_the_hidden_layer_in_training_only():
    layer = FeedForward(dim=4, ff_dim=64, dropout=0.5)
    x = torch.randn(1, 5, 4)
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("frozen", ["w_1.weight", "w_1.bias", "w_2.weight", "w_2.bias"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same(frozen):
    layer = FeedForward(dim=4, ff_dim=8).double()
    x = torch.randn(1, 5, 4, dtype=torch.float64)
    layer(x).square().sum().backward()
    expected = {name: p.grad for name, p in layer.named_parameters()}
    layer.zero_grad()
    layer.get_parameter(frozen).requires_grad_(False)
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        if name == frozen:
            assert parameter.grad is None
        else:
            assert_close(parameter.grad, expected[name])


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match=r"activation must be one of .*got 'geglu'"):
        FeedForward(dim=4, ff_dim=8, activation="geglu")
