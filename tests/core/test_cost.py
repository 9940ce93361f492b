"""Closed forms against the real modules."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit import LinformerAttention, LinformerEncoder, Plan
from linformer_kit.core import cost
from linformer_kit.core.plan import choose
from linformer_kit.core.projection_kinds import NOT_A_MATRIX, PROJECTIONS, SHARINGS

SIZES = {"dim": 64, "num_heads": 4, "max_length": 256, "k": 16}
CASES = [
    (projection, sharing, shorten, attend)
    for projection, sharing, shorten, attend in itertools.product(
        PROJECTIONS, SHARINGS, ("input", "keys"), ("fused", "absorbed")
    )
    if not (projection in NOT_A_MATRIX and shorten == "keys")
    and not (projection == "full" and (shorten, attend) != ("keys", "fused"))
]


def counted_flops(module: nn.Module, *inputs: Tensor, **options: Tensor) -> int:
    # The math backend is built of the matrix products that the counter knows.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        module(*inputs, **options)
    return counter.get_total_flops()


def kept_bytes(module: nn.Module, x: Tensor) -> int:
    """The storages autograd holds after a forward pass, parameters left out."""
    owned = itertools.chain(module.parameters(), module.buffers())
    parameters = {tensor.untyped_storage().data_ptr() for tensor in owned}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(x)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(("projection", "sharing", "shorten", "attend"), CASES)
def test_attention_flops_parameters_and_bytes(projection, sharing, shorten, attend):
    layer = LinformerAttention(
        **SIZES, projection=projection, sharing=sharing, plan=Plan(shorten, attend)
    )
    x = torch.randn(4, 256, 64, requires_grad=True)
    shape = layer.shape(batch=4, length=256)
    flops = cost.attention_flops(shape, shorten=shorten, attend=attend)
    assert counted_flops(layer, x) == pytest.approx(flops, rel=0.01)
    assert cost.attention_parameters(shape) == sum(p.numel() for p in layer.parameters())
    estimate = cost.attention_activation_bytes(shape, shorten=shorten, attend=attend)
    assert kept_bytes(layer, x) == pytest.approx(estimate, rel=0.03)


def test_cross_attention_with_its_own_sizes():
    layer = LinformerAttention(
        **SIZES, projection="linear", sharing="headwise", context_dim=32, head_dim=8, num_kv_heads=2
    )
    shape = layer.shape(batch=1, length=10, context=200)
    plan = choose(shape)
    counted = counted_flops(layer, torch.randn(1, 10, 64), context=torch.randn(1, 200, 32))
    estimate = cost.attention_flops(shape, shorten=plan.shorten, attend=plan.attend)
    assert counted == pytest.approx(estimate, rel=0.03)
    assert cost.attention_parameters(shape) == sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize("sharing", ["kv", "layerwise"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "swiglu"])
@pytest.mark.parametrize(("bias", "neighbours"), [(True, 0), (False, 7)])
def test_encoder_flops_parameters_and_bytes(sharing, norm, activation, bias, neighbours):
    encoder = LinformerEncoder(
        **SIZES | {"k": (16, 8)},
        depth=2,
        ff_dim=96,
        sharing=sharing,
        norm=norm,
        activation=activation,
        positions="learned",
        neighbours=neighbours,
        moving_average=neighbours > 0,
        bias=bias,
    )
    x = torch.randn(2, 256, 64, requires_grad=True)
    shape = encoder.shape(batch=2, length=256)
    plans = tuple((plan.shorten, plan.attend) for plan in map(choose, shape.layers))
    assert cost.encoder_parameters(shape) == sum(p.numel() for p in encoder.parameters())
    flops = cost.encoder_flops(shape, plans)
    assert counted_flops(encoder, x) == pytest.approx(flops, rel=0.01)
    estimate = cost.encoder_activation_bytes(shape, plans)
    assert kept_bytes(encoder, x) == pytest.approx(estimate, rel=0.03)
