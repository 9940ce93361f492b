"""Settings: what means nothing is refused, with the rule and what was received."""

from __future__ import annotations

import pytest

from linformer_kit.evidence.bench.catalog import (
    BENCHMARKS,
    AttentionSettings,
    DecodeSettings,
    GridSettings,
    GrowthSettings,
)


@pytest.mark.parametrize(
    ("settings", "wrong", "message"),
    [
        (AttentionSettings, {"rounds": 0}, "rounds must be at least 1: got 0"),
        (AttentionSettings, {"limit": 0.0}, "limit must be more than 0: got 0"),
        (AttentionSettings, {"dropout": 1.0}, "dropout must be at least 0 and below 1: got 1"),
        (AttentionSettings, {"dropout": float("nan")}, "dropout must be finite: got nan"),
        (AttentionSettings, {"layers": ("decoder",)}, "layers must be one of .* got 'decoder'"),
        (AttentionSettings, {"modes": ("train",)}, "one of .* Did you mean 'training'"),
        (AttentionSettings, {"models": ("full",)}, "models must include it: got full"),
        (AttentionSettings, {"k": (8192,)}, "k must be at most the length, for it shortens"),
        (GrowthSettings, {"budget": -1.0}, "budget must be more than 0: got -1"),
        (GridSettings, {"dim": 15, "heads": 2}, "dim must be divisible by the number of heads"),
        (GridSettings, {"k": (0,)}, "k must be at least 1: got 0"),
        (DecodeSettings, {"window": 2**25}, "window must be at most 16777216: got 33554432"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, wrong, message):
    with pytest.raises(ValueError, match=message):
        settings(**wrong)


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda one: one.name)
def test_defaults_are_valid_and_given_values_win_over_those_of_quick(benchmark):
    whole, small = (benchmark.settings.with_defaults(quick, {}) for quick in (False, True))
    assert whole != small
    given = benchmark.settings.with_defaults(True, {"dim": 48, "heads": 4, "seed": 7})
    assert (given.dim, given.heads, given.seed) == (48, 4, 7)
    assert given.rounds == small.rounds
