"""What a variant costs: counted and measured on the model that is trained."""

from __future__ import annotations

import pytest

from linformer_kit.compare.measure import parameters, step_times, training_memory
from linformer_kit.config.load import load

from ..train import tiny


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [("none", 2 * 2 * 2), ("headwise", 2 * 2), ("kv", 2), ("layerwise", 1)],
)
def test_projections_have_the_parameters_of_their_sharing(tmp_path, sharing, expected):
    """k x n for each E and F: of every head and layer, of every layer, E = F, or one for all."""
    path = tiny.write(tmp_path)
    found = parameters(load(path, [f"model.sharing={sharing}", "model.num_hidden_layers=2"]))
    vanilla = parameters(
        load(path, ["model.projection=full", "model.k=null", "model.num_hidden_layers=2"])
    )
    assert found.projections == expected * 8 * 32
    assert vanilla.projections == 0
    assert found.total - found.projections == vanilla.total


def test_a_step_is_timed_for_every_variant_and_task(tmp_path):
    for task in ("mlm", "clm", "classify", "translate"):
        config = load(tiny.write(tmp_path / task, task, accumulate=2))
        times = step_times([config, config])
        assert len(times) == 2
        assert min(times) > 0


@pytest.mark.slow
def test_memory_is_at_least_weights_gradients_and_optimizer(tmp_path):
    path = tiny.write(tmp_path)
    large = load(path, ["model.hidden_size=512", "model.intermediate_size=2048"])
    small = load(path)
    needed = 4 * 4 * parameters(large).total  # float32: weights, gradients and two moments
    found = training_memory(large)
    assert needed < found < 3 * needed
    assert training_memory(large) == pytest.approx(found, rel=0.03)
    assert training_memory(small) < found / 4
