"""Padding is removed and put back."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from linformer_kit.core.unpadding import Unpadding

MASK = torch.tensor([[False, True, False, True], [True] * 4, [False] * 4])


def test_tokens_come_first_in_their_order_and_zeros_after_them():
    x = torch.arange(1.0, 13.0).view(3, 4, 1)
    moved = Unpadding.of(MASK).unpad(x)
    assert moved[..., 0].tolist() == [[2.0, 4.0, 0.0, 0.0], [5.0, 6.0, 7.0, 8.0], [0.0] * 4]


def test_padding_is_the_inverse_and_never_shows_what_was_there():
    x = torch.randn(3, 4, 2).masked_fill(~MASK[..., None], float("nan"))
    unpadding = Unpadding.of(MASK)
    assert_close(unpadding.pad(unpadding.unpad(x)), x.nan_to_num(0.0))


def test_weights_are_moved_in_rows_and_columns():
    unpadding = Unpadding.of(MASK)
    weights = torch.randn(3, 2, 4, 4)
    real = MASK[:, None, :, None]
    rows = unpadding.pad_weights(unpadding.unpad_weights(weights))
    assert_close(rows, weights.masked_fill(~real, 0.0))
    both = unpadding.pad_weights(unpadding.unpad_weights(weights, columns=True), columns=True)
    assert_close(both, weights.masked_fill(~(real & MASK[:, None, None]), 0.0))
