"""Counted FLOPs are those of the closed form, with the fused attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from linformer_kit import LinformerEncoder
from linformer_kit.bench.gemm import plans_of
from linformer_kit.core.cost import encoder_flops
from linformer_kit.core.feedforward import FeedForward
from linformer_kit.measure.flops import count_flops


def test_fused_attention_and_its_backward_pass():
    query = torch.randn(2, 3, 50, 8, requires_grad=True)
    key, value = torch.randn(2, 2, 3, 70, 8)
    product = 2 * 2 * 3 * 50 * 70 * 8
    with count_flops() as counter:
        result = F.scaled_dot_product_attention(query, key, value)
    assert counter.get_total_flops() == 2 * product
    with count_flops() as counter:
        result.sum().backward()
    assert counter.get_total_flops() == 5 * product  # the scores are computed again


@pytest.mark.parametrize(
    "options", [{"projection": "full"}, {"k": 32}, {"k": 16, "window": 16, "projection": "mean"}]
)
def test_an_encoder_has_the_flops_of_the_closed_form(options):
    encoder = LinformerEncoder(dim=64, depth=2, num_heads=4, max_length=512, ff_dim=128, **options)
    shape = encoder.shape(batch=2, length=512)
    x = torch.randn(2, 512, 64)
    with torch.no_grad(), count_flops() as fused:
        encoder.eval()(x)
    with torch.no_grad(), count_flops() as plain, sdpa_kernel(SDPBackend.MATH):
        encoder(x)
    expected = encoder_flops(shape, plans_of(shape))
    assert fused.get_total_flops() == pytest.approx(expected, rel=0.03)
    assert plain.get_total_flops() == pytest.approx(expected, rel=0.03)


def test_a_backward_pass_has_two_products_for_each_of_the_forward_pass():
    layer, x = FeedForward(dim=16, ff_dim=32), torch.randn(2, 9, 16, requires_grad=True)
    with count_flops() as counter:
        layer(x).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * (2 * 18 * 16 * 32)
