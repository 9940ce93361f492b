"""Attention pooling of segments: what makes a pooled row a good stand-in for its positions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit import LinformerAttention
from linformer_kit.core.segments import PoolProjection

SIZES = {"dim": 16, "num_heads": 4, "max_length": 24, "k": 6, "window": 4}


def built(projection: str = "pool", **options) -> LinformerAttention:
    torch.manual_seed(0)
    layer = LinformerAttention(projection=projection, **SIZES | options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def padded() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(2, 21, 16, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(21) < torch.tensor([[21], [14]])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_it_is_full_attention_where_every_query_is_the_one_it_was_made_for(num_kv_heads, masked):
    """sum_i exp(u . k_i) and its mean of values are exact at q = u, however different the keys."""
    layer = built(sharing="none", num_kv_heads=num_kv_heads)
    full = built("full", k=None, window=0, num_kv_heads=num_kv_heads)
    full.load_state_dict(layer.state_dict(), strict=False)
    queries = torch.randn(num_kv_heads, 4, dtype=torch.double)
    keys = layer.k_proj.weight.detach().unflatten(0, (num_kv_heads, 4))  # (G, D, M)
    with torch.no_grad():
        for each in (layer, full):
            each.q_proj.weight.zero_()
            each.q_proj.bias.copy_(queries.repeat_interleave(4 // num_kv_heads, 0).flatten())
        weight = torch.einsum("gd,gdm->gm", queries, keys) / math.sqrt(4)
        layer.projection.weight.copy_(weight)
    x, mask = padded()
    assert_close(layer(x, mask=mask if masked else None), full(x, mask=mask if masked else None))
    mean = built("mean", num_kv_heads=num_kv_heads)
    mean.load_state_dict(layer.state_dict(), strict=False)
    assert (mean(x) - full(x)).abs().max() > 1e-3


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv"])
def test_without_weights_it_is_the_mean(sharing):
    layer, mean = built(sharing=sharing), built("mean")
    mean.load_state_dict(layer.state_dict(), strict=False)
    layer.projection.reset_parameters()
    x, mask = padded()
    assert_close(layer(x, mask=mask), mean(x, mask=mask))


def test_weights_sum_to_one_and_the_bias_is_their_entropy():
    projection = PoolProjection(k=3, max_length=12, dim=5, sides=2, heads=2).double()
    nn.init.normal_(projection.weight)
    x = torch.randn(1, 10, 5, dtype=torch.double)  # the last segment has 2 positions
    compression = projection(x, None)
    assert_close(compression.row_sums(), torch.ones(1, 2, 2, 3, dtype=torch.double))
    weights = compression.weights[..., :2]  # of the keys
    assert_close(compression.row_bias, torch.special.entr(weights).sum(2).transpose(1, 2))
    assert compression.row_bias.max() <= math.log(4)
    assert compression.row_bias[..., 2].max() <= math.log(2)


def test_global_positions_are_not_part_of_rows():
    """They are seen exactly, and a position with much weight would hide its segment."""
    layer, (x, mask) = built(global_tokens=1, sharing="none"), padded()
    changed = x.clone()
    changed[:, 0] = 50.0
    rows = [layer.projection(each, mask & (torch.arange(21) > 0)).weights for each in (x, changed)]
    assert_close(*rows)
    assert rows[0][:, 0, 0].eq(0).all()


def test_a_layer_with_a_smaller_k_has_wider_segments():
    projection = PoolProjection(k=6, max_length=24, dim=16, sides=1, heads=1)
    assert projection(torch.randn(1, 24, 16), None).weights.shape == (1, 6, 4, 1)
    assert projection(torch.randn(1, 24, 16), None, rows=3).weights.shape == (1, 3, 8, 1)
    projection.resize(48)
    assert projection(torch.randn(1, 48, 16), None).weights.shape == (1, 6, 8, 1)
