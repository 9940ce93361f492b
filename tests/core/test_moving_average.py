"""Moving averages of the input against their loops."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit import LinformerEncoder
from linformer_kit.core import moving_average, reference_causal
from linformer_kit.core.moving_average import MovingAverage, decayed_sum


def built(dim: int = 5, **options) -> MovingAverage:
    torch.manual_seed(0)
    return MovingAverage(dim=dim, **options).double()


def rows_of(batch: int, length: int, dim: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, dim, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("width", [2, 3, 64])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 9, 13])
def test_outputs_and_gradients_are_the_reference_s(width, length, monkeypatch):
    """Chunks of 2 have up to four levels here."""
    monkeypatch.setattr(moving_average, "WIDTH", width)
    layer, x = built(), rows_of(2, length).requires_grad_()
    sums = [reference_causal.moving_sums(layer.w_1(sample), layer.log_time.exp()) for sample in x]
    expected = layer.added(x, torch.stack(sums), None)
    actual = layer(x)
    assert_close(actual, expected)
    leaves, weight = (x, *layer.parameters()), torch.randn_like(expected)
    assert_close(
        torch.autograd.grad((actual * weight).sum(), leaves),
        torch.autograd.grad((expected * weight).sum(), leaves),
    )


def test_a_long_time_counts():
    steps = torch.tensor([1.0, 1.0, -1.0, 0.0, 1.0] * 400)[None, :, None]
    depth = decayed_sum(steps, torch.tensor([1e-9]))
    assert_close(depth, steps.cumsum(1), rtol=1e-4, atol=1e-3)


def test_padding_adds_nothing_and_a_padded_sample_equals_itself_alone():
    layer, x = built(), rows_of(1, 70)
    mask = torch.ones(1, 90, dtype=torch.bool)
    mask[:, 70:] = False
    padded = torch.cat((x, torch.zeros(1, 20, 5, dtype=torch.float64)), dim=1)
    found = layer(padded, mask)
    assert_close(found[:, :70], layer(x))
    assert not found[:, 70:].any()


@pytest.mark.parametrize("cut", [1, 40, 99])
def test_parts_with_the_sums_around_them_are_the_whole(cut):
    layer, x = built(), rows_of(2, 100)
    u = layer.inputs(x, None)
    whole = layer.sums(u)
    nothing = torch.zeros(2, 5, dtype=torch.float64)
    ends = [layer.ends(layer.sums(part)) for part in (u[:, :cut], u[:, cut:])]
    back = layer.looks_back()
    around = torch.where(back, nothing, ends[1]), torch.where(back, ends[0], nothing)
    parts = [
        layer.sums(part) + layer.carried(beside, part.shape[1])
        for part, beside in zip((u[:, :cut], u[:, cut:]), around, strict=True)
    ]
    assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_precisions_are_near(dtype):
    layer, x = built(dim=16), rows_of(1, 300, 16)
    expected = layer(x)
    found = layer.to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    limit = 0.1 if dtype == torch.bfloat16 else 1e-5
    assert_close(found.double(), expected, rtol=limit, atol=limit)


def test_times_of_less_than_a_position_leave_the_row_itself():
    layer = built()
    torch.nn.init.constant_(layer.log_time, -1e9)
    u = rows_of(1, 8)
    assert_close(layer.sums(u), u)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"moving_average": 1}, TypeError, "moving_average must be True or False: got 1"),
        ({"moving_average": True, "dim": 1, "num_heads": 1}, ValueError, "at least 2: got 1"),
    ],
)
def test_wrong_arguments_are_refused(options, error, message):
    sizes = {"dim": 4, "num_heads": 2, "depth": 1, "projection": "full"}
    with pytest.raises(error, match=message):
        LinformerEncoder(**sizes | options)
