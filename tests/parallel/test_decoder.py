"""The causal decoder on parts of a sequence equals the decoder on the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .cases import check_decoder

if TYPE_CHECKING:
    from .ranks import Ranks


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize(
    "window",
    [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(40, marks=pytest.mark.slow)],
)
def test_slots_and_window(ranks: Ranks, k: int, window: int) -> None:
    options = {"k": k, "window": window}
    ranks.run(check_decoder, options, 37, sequence=4)
    ranks.run(check_decoder, options, 37, sequence=4, cuts=[1, 2, 31, 3], mask="right")
    ranks.run(check_decoder, options, 40, sequence=2, mask="right")


@pytest.mark.parametrize("kind", ["linear", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_cross_attention(ranks: Ranks, kind: str) -> None:
    options = {
        "k": 3, "window": 4, "context_projection": kind, "context_k": 5, "context_max_length": 40,
    }  # fmt: skip
    ranks.run(check_decoder, options, 21, sequence=4, context=30, mask="right")


def test_gradient_checkpointing(ranks: Ranks) -> None:
    options = {"k": 3, "window": 4, "gradient_checkpointing": True}
    ranks.run(check_decoder, options, 33, sequence=4)
