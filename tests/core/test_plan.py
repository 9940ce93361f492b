"""The order of multiplication follows the count of multiplications."""

from __future__ import annotations

import pytest

from linformer_kit import Plan
from linformer_kit.core.cost import AttentionShape
from linformer_kit.core.plan import choose


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
