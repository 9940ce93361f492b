"""Positions: the formula, in every precision."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from linformer_kit.core import positions as core_positions
from linformer_kit.core.positions import LearnedPositions, SinusoidalPositions, build_positions


@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 0.01)]
)
def test_sinusoids_are_the_formula_however_far(dtype, near):
    positions = SinusoidalPositions(dim=6).to(dtype)
    y = positions(torch.zeros(1, 100_001, 6, dtype=dtype))[0].double()
    for place in (0, 1, 1999, 100_000):
        for pair in range(3):
            angle = place / 1e4 ** (pair / 3)
            assert y[place, pair].item() == pytest.approx(math.sin(angle), abs=near)
            assert y[place, 3 + pair].item() == pytest.approx(math.cos(angle), abs=near)


def test_learned_positions_are_added_and_end():
    positions = LearnedPositions(max_length=5, dim=2)
    x = torch.randn(2, 4, 2)
    assert_close(positions(x) - x, positions.weight[:4].expand(2, -1, -1))
    with pytest.raises(ValueError, match=r"max_length=5: got 6 positions"):
        positions(torch.randn(1, 6, 2))


@pytest.mark.parametrize("chunk", [2, 2**16])
@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_rows_may_stand_anywhere(kind, chunk, monkeypatch):
    monkeypatch.setattr(core_positions, "CHUNK", chunk)
    positions = build_positions(kind, 9, 4)
    x = torch.randn(2, 3, 4)
    place = torch.tensor([[2, 3, 4], [0, 0, 8]])
    table = positions(torch.zeros(1, 9, 4))[0]
    assert_close(positions(x, place), x + table[place])


def test_a_position_behind_the_last_is_refused():
    positions = LearnedPositions(max_length=5, dim=2)
    with pytest.raises(ValueError, match=r"max_length=5: got 6 positions"):
        positions(torch.randn(1, 1, 2), torch.tensor([[5]]))
