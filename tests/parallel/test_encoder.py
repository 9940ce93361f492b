"""The encoder on parts of a sequence equals the encoder on the whole: outputs and gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .cases import check_encoder

if TYPE_CHECKING:
    from .ranks import Ranks

KINDS = ("linear", "fixed", "dynamic", "conv", "mean")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sharing",
    [
        pytest.param("none", marks=pytest.mark.slow),
        pytest.param("headwise", marks=pytest.mark.slow),
        "layerwise",
    ],
)
def test_every_kind_with_padding_anywhere(ranks: Ranks, kind: str, sharing: str) -> None:
    options = {"projection": kind, "sharing": sharing, "k": 5, "max_length": 40}
    ranks.run(check_encoder, options, 37, sequence=4, mask="with empty")
    ranks.run(check_encoder, options, 37, sequence=2, cuts=[30, 7], mask="right")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [40, 23, 4])
def test_every_length_without_padding(ranks: Ranks, kind: str, length: int) -> None:
    options = {"projection": kind, "k": [5, 5] if kind == "conv" else [5, 3], "max_length": 40}
    ranks.run(check_encoder, options, length, sequence=4)


@pytest.mark.parametrize("kind", KINDS)
def test_window_and_global_tokens(ranks: Ranks, kind: str) -> None:
    options = {"projection": kind, "k": 5, "max_length": 40, "window": 4, "global_tokens": 3}
    ranks.run(check_encoder, options, 37, sequence=4, mask="with empty")
    ranks.run(check_encoder, options, 37, sequence=4, cuts=[1, 2, 33, 1], mask="right")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"k": 0, "window": 4},
        {"k": 0, "window": 4, "global_tokens": 2},
        {"k": 5, "window": 64},
        {"k": 5, "global_tokens": 3},
        {"k": 5, "window": 3, "projection": "mean"},
        {"k": 5, "global_tokens": 7, "projection": "conv"},
    ],
)
def test_windows_of_other_sizes(ranks: Ranks, options: dict[str, Any]) -> None:
    ranks.run(check_encoder, {"max_length": 40, **options}, 33, sequence=4, mask="any")
    ranks.run(check_encoder, {"max_length": 40, **options}, 40, sequence=2)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "learned", "neighbours": 5},
        {"neighbours": 3, "moving_average": True},
        {"positions": "sinusoidal", "norm": "post", "neighbours": 3, "sharing": "none"},
        {"num_kv_heads": 2, "keep_scale": False, "projection_bias": True},
        {"num_kv_heads": 1, "window": 4, "bias": False},
        {"gradient_checkpointing": True, "window": 4, "global_tokens": 2},
        {"activation": "swiglu", "head_dim": 6, "final_norm": False},
    ],
)
def test_options_of_the_encoder(ranks: Ranks, options: dict[str, Any]) -> None:
    ranks.run(check_encoder, {"k": 5, "max_length": 40, **options}, 37, sequence=4, mask="any")
