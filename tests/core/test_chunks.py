"""Sequences cut into chunks, against a loop over tokens."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.core.chunks import in_chunks, shift_chunks


@pytest.mark.parametrize(("length", "chunks", "window"), [(12, 3, 4), (10, 3, 4), (1, 2, 3)])
@pytest.mark.parametrize("rest", [(), (5,), (2, 3)])
def test_a_token_is_in_the_chunk_of_its_position_and_padding_is_zero(length, chunks, window, rest):
    rows = torch.randn(2, length, *rest) if rest else torch.randn(2, length)
    cut = in_chunks(rows, chunks, window)
    assert cut.shape == (2, chunks, window, *rest)
    for position in range(chunks * window):
        expected = rows[:, position] if position < length else torch.zeros(2, *rest)
        assert torch.equal(cut[:, position // window, position % window], expected)


def test_a_length_that_fits_is_not_copied():
    rows = torch.randn(2, 12, 3)
    assert in_chunks(rows, 3, 4).data_ptr() == rows.data_ptr()


@pytest.mark.parametrize("by", [0, 1, 2, 4])
def test_a_shift_moves_chunks_to_the_right_and_never_backwards(by):
    rows = torch.randn(2, 4, 3, requires_grad=True)
    moved = shift_chunks(rows, by)
    assert moved.shape == rows.shape
    for chunk in range(4):
        expected = rows[:, chunk - by] if chunk >= by else torch.zeros(2, 3)
        assert torch.equal(moved[:, chunk], expected)
        (seen,) = torch.autograd.grad(moved[:, chunk].sum(), rows, retain_graph=True)
        assert not seen[:, max(0, chunk - by + 1) :].any()
