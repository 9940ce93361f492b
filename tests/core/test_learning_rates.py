"""E learns more slowly than W, the longer its input."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerEncoder, parameter_groups
from linformer_kit.core.learning_rates import group_by_rate


@pytest.mark.parametrize(
    ("options", "matrices", "rate"),
    [
        ({"sharing": "layerwise"}, 1, 0.25),
        ({"sharing": "kv"}, 2, 0.25),
        ({"sharing": "kv", "max_length": 8}, 2, 1.0),
        ({"projection": "conv"}, 1, 1.0),
        ({"projection": "full"}, 0, None),
    ],
)
def test_the_rate_of_e_falls_with_the_length(options, matrices, rate):
    sizes = {"dim": 16, "depth": 2, "num_heads": 2, "max_length": 64, "k": 4}
    encoder = LinformerEncoder(**sizes | options)
    owners = [encoder, *(layer.attention for layer in encoder.layers)]
    weights = [o.projection.weight for o in owners if hasattr(o.projection, "weight")]
    assert group_by_rate(weights, encoder) == ({rate: weights} if weights else {})
    assert len(weights) == matrices


def test_groups_hold_every_parameter_once_and_train():
    encoder = LinformerEncoder(dim=16, depth=2, num_heads=2, max_length=64, k=4)
    groups = parameter_groups(encoder, lr=0.01)
    assert [group["lr"] for group in groups] == [0.01, 0.0025]
    held = [parameter for group in groups for parameter in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in encoder.parameters()}
    assert len(held) == len(list(encoder.parameters()))
    before = encoder.projection.weight.detach().clone()
    optimizer = torch.optim.Adam(groups)
    encoder(torch.randn(2, 64, 16)).square().sum().backward()
    optimizer.step()
    moved = (encoder.projection.weight - before).abs().max().item()
    assert moved == pytest.approx(0.0025, rel=0.01)  # Adam's first step is the rate itself
