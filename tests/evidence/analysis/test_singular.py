"""Kept singular values: exact ones are those of the SVD, randomised ones are near them."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.evidence.analysis.singular import kept_by_rank, smallest_rank


def attention(n: int, spread: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, n, 32, generator=generator) for _ in range(2))
    return (spread * query @ key.mT / 32**0.5).softmax(-1)


def exact(matrix: torch.Tensor) -> torch.Tensor:
    values = torch.linalg.svdvals(matrix.double())
    return values.cumsum(-1) / values.sum(-1, keepdim=True)


def test_small_matrices_are_exact():
    matrix = attention(48, 2.0)
    kept = kept_by_rank(matrix)
    assert kept.shape == (2, 48)
    torch.testing.assert_close(kept.double(), exact(matrix), atol=1e-5, rtol=0)


def test_n_by_k_weights_have_k_ranks():
    assert kept_by_rank(attention(48, 1.0)[..., :16]).shape == (2, 16)


@pytest.mark.parametrize("spread", [0.5, 1.0, 4.0])
def test_the_randomised_way_is_within_two_percent(spread):
    matrix = attention(300, spread)
    generator = torch.Generator().manual_seed(1)
    kept = kept_by_rank(matrix, ranks=64, generator=generator)
    assert kept.shape == (2, 64)
    assert (kept - exact(matrix)[:, :64]).abs().max() < 0.02


def test_the_randomised_way_of_a_low_rank_matrix_keeps_all():
    matrix = torch.randn(200, 5) @ torch.randn(5, 200)
    kept = kept_by_rank(matrix, ranks=16)
    torch.testing.assert_close(kept, exact(matrix)[:16].float(), atol=1e-3, rtol=0)
    assert kept[4] > 0.999


def test_above_512_it_is_randomised():
    matrix = torch.eye(640)[None]
    kept = kept_by_rank(matrix, generator=torch.Generator().manual_seed(0))
    assert kept.shape == (1, 512)
    torch.testing.assert_close(kept[0, -1], torch.tensor(0.8), atol=0.01, rtol=0)


def test_the_smallest_rank_that_keeps_a_share():
    kept = torch.tensor([[0.5, 0.9, 1.0], [0.2, 0.3, 0.4], [0.9, 0.95, 1.0]])
    assert smallest_rank(kept, 0.9).tolist() == [2, 0, 1]  # 0: none of these does
