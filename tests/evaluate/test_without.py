"""Evaluation with the rows or the window of an encoder switched off."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerEncoder
from linformer_kit.core.window_rows import switch_off


def encoder(**options) -> LinformerEncoder:
    torch.manual_seed(0)
    sizes = {"dim": 8, "depth": 2, "num_heads": 2, "max_length": 12, "k": 3, "projection": "mean"}
    return LinformerEncoder(**sizes | options).eval()


def test_without_rows_it_is_the_window_alone():
    both, alone = encoder(window=2), encoder(window=2, k=0)
    alone.load_state_dict(both.state_dict())
    x = torch.randn(2, 12, 8)
    switch_off(both, "rows")
    torch.testing.assert_close(both(x), alone(x))


def test_without_the_window_only_the_rows_are_seen():
    both = encoder(window=2)
    x = torch.randn(1, 12, 8)
    before = both(x)
    switch_off(both, "window")
    without = both(x)
    assert (without - before).abs().max() > 1e-3
    weights = both.trace(x).attentions[0]
    assert weights[..., 3:].abs().max() == 0
    torch.testing.assert_close(weights[..., :3].sum(-1), torch.ones(1, 2, 12))


@pytest.mark.parametrize("options", [{}, {"window": 2, "k": 0}, {"projection": "full"}])
def test_a_model_that_has_not_both_is_refused(options):
    with pytest.raises(ValueError, match=r"a window and k > 0.*none with both"):
        switch_off(encoder(**options), "rows")
