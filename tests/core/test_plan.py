"""The order of multiplication follows the count of multiplications."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerAttention, Plan, resize_max_length
from linformer_kit.core.cost import AttentionShape
from linformer_kit.core.plan import choose, plan_for


def shape(**options) -> AttentionShape:
    sizes = {"batch": 1, "length": 4096, "dim": 512, "num_heads": 8, "max_length": 4096}
    return AttentionShape(**sizes | options)


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({"k": 256}, Plan("input", "fused")),
        ({"k": 32}, Plan("input", "absorbed")),
        ({"k": 64, "num_heads": 4}, Plan("input", "absorbed")),
        ({"k": 256, "sharing": "none"}, Plan("keys", "fused")),
        ({"k": 32, "sharing": "none"}, Plan("input", "absorbed")),
        ({"k": 256, "projection": "max", "sharing": "none"}, Plan("input", "fused")),
        ({"k": None, "projection": "full"}, Plan("keys", "fused")),
        # One query: folding the weights into the memory costs more than it saves.
        ({"k": 32, "length": 1, "context": 4096}, Plan("input", "fused")),
    ],
)
def test_the_cheapest_order_is_chosen(options, plan):
    assert choose(shape(**options)) == plan


def test_a_plan_refuses_an_order_that_does_not_exist():
    with pytest.raises(ValueError, match=r"attend must be one of .*got 'absorb'.*'absorbed'"):
        Plan("input", "absorb")


def test_the_plan_of_a_layer_is_the_cheapest_for_each_call_and_follows_its_sizes():
    layer = LinformerAttention(dim=16, num_heads=4, max_length=64, k=4)
    for length, queries in ((64, 64), (64, 1), (8, 64)):
        shape = layer.shape(batch=2, length=queries, context=length)
        for _ in range(2):  # computed, and from the cache
            assert plan_for(layer, torch.empty(2, length, 16), queries) == choose(shape)
    resize_max_length(layer, 128)
    shape = layer.shape(batch=2, length=128, context=128)
    assert plan_for(layer, torch.empty(2, 128, 16), 128) == choose(shape)


def test_modified_linear_layers_are_not_folded():
    layer = LinformerAttention(dim=64, num_heads=2, max_length=64, k=2)
    x = torch.empty(1, 64, 64)
    assert plan_for(layer, x, 64).attend == "absorbed"
    layer.q_proj.register_forward_hook(lambda *_: None)
    assert plan_for(layer, x, 64).attend == "fused"
    layer.plan = Plan("keys", "absorbed")
    assert plan_for(layer, x, 64) == Plan("keys", "fused")
