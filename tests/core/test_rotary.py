"""Rotary positions: rotations of pairs of channels, by an angle that grows with the position."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit.core.rotary import angles, check_rotary, rotate


def turned(x, position, rotary_dim):
    """The same as multiplication of complex numbers, a channel at a time."""
    half = rotary_dim // 2
    expected = x.clone()
    for i in range(half):
        turn = torch.polar(
            torch.ones(position.shape, dtype=torch.float64), position.double() / 1e4 ** (i / half)
        )
        pair = torch.complex(x[..., i], x[..., half + i]) * turn[:, :, None]
        expected[..., i], expected[..., half + i] = pair.real, pair.imag
    return expected


@pytest.mark.parametrize("rotary_dim", [2, 6, 8])
def test_rotation_is_multiplication_by_a_complex_number_of_size_one(rotary_dim):
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    position = torch.tensor([[0, 1, 2, 3, 4], [7, 100, 3, 0, 1_000_000]])
    assert_close(rotate(x, position, rotary_dim), turned(x, position, rotary_dim))


def test_the_product_of_query_and_key_depends_on_their_distance_only():
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)

    def product(at, other):
        here, there = torch.tensor([[at]]), torch.tensor([[other]])
        return (rotate(query, here, 8) * rotate(key, there, 8)).sum()

    assert_close(product(3, 10), product(103, 110))
    assert not torch.isclose(product(3, 10), product(3, 11))


def test_channels_past_the_rotated_ones_and_position_zero_stay():
    x = torch.randn(1, 4, 2, 8)
    position = torch.arange(4)[None]
    assert torch.equal(rotate(x, position, 4)[..., 4:], x[..., 4:])
    assert torch.equal(rotate(x, position, 4)[:, 0], x[:, 0])
    assert rotate(x, position, 0) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_far_positions_are_as_exact_as_near_ones(dtype):
    x = torch.randn(1, 1, 1, 8).to(dtype)
    far = torch.tensor([[1_000_003]])
    assert rotate(x, far, 8).dtype == dtype
    assert_close(rotate(x, far, 8), turned(x.double(), far, 8).to(dtype))


def test_angles_are_computed_in_double_precision():
    assert angles(torch.tensor([5]), 3).dtype == torch.float64
    assert angles(torch.zeros(2, 4), 3).shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("head_dim", "fraction", "count"),
    [(8, 1.0, 8), (8, 0.5, 4), (6, 0.5, 2), (7, 1.0, 6), (8, 0, 0)],
)
def test_an_even_number_of_channels_is_rotated(head_dim, fraction, count):
    assert check_rotary(head_dim, fraction) == count


@pytest.mark.parametrize("fraction", [-0.1, 1.5, float("nan")])
def test_a_fraction_outside_of_0_to_1_is_refused(fraction):
    with pytest.raises(ValueError, match=f"from 0 to 1: got {fraction}"):
        check_rotary(8, fraction)
