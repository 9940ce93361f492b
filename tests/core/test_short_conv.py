"""A short convolution over the input against its loops."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit.core import reference_causal
from linformer_kit.core.short_conv import ShortConv


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("width", [3, 5])
def test_outputs_and_gradients_are_the_reference_s(width, length):
    neighbours = ShortConv(width=width, dim=4).double()
    x = torch.randn(2, length, 4, dtype=torch.float64, requires_grad=True)
    expected = torch.stack([reference_causal.short_conv(sample, neighbours.weight) for sample in x])
    actual = neighbours(x)
    assert_close(actual, expected)
    weight = torch.randn_like(expected)
    inputs = (x, neighbours.weight)
    for ours, theirs in zip(
        torch.autograd.grad((actual * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        assert_close(ours, theirs)


def test_neighbours_are_as_loud_as_the_row_at_first():
    torch.manual_seed(0)
    x = torch.randn(4, 200, 64)
    neighbours = ShortConv(width=5, dim=64)
    assert (neighbours(x) - x).std().item() == pytest.approx(1.0, abs=0.15)
