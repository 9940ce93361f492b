"""The GEMM rate: counted multiplications are those that are done."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit.evidence.bench.gemm import gemm, gemm_flops, step_flops
from linformer_kit.evidence.bench.implementations import build, make_input
from linformer_kit.evidence.bench.settings import Point


def counted(run) -> int:
    # The math backend is built of the matrix products that the counter knows.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        run()
    return counter.get_total_flops()


def test_the_product_has_its_flops():
    assert counted(gemm(32)) == gemm_flops(32) == 2 * 32**3


@pytest.mark.parametrize("k", [1, 8])  # absorbed, fused
@pytest.mark.parametrize("layer", ["attention", "encoder"])
@pytest.mark.parametrize("name", ["linformer-kit", "full"])
def test_forward_flops_are_those_torch_counts(name, layer, k):
    point = Point(
        dim=16, num_heads=4, k=k, length=24, batch=2, depth=2 if layer == "encoder" else 1
    )
    model = build(name, layer, point, dropout=0.0, seed=0)
    x = make_input(point, seed=0)
    assert step_flops(model, point, "inference") == counted(lambda: model(x))


def test_a_training_step_counts_three_forward_passes():
    point = Point(dim=16, num_heads=4, k=8, length=24)
    model = build("linformer-kit", "encoder", point, dropout=0.0, seed=0)
    forward = step_flops(model, point, "inference")
    assert step_flops(model, point, "training") == 3 * forward
    assert step_flops(model, point, "dropout") == 3 * forward


def test_models_of_others_are_not_counted():
    point = Point(dim=16, num_heads=4, k=8, length=24)
    model = build("linformer", "attention", point, dropout=0.0, seed=0)
    assert step_flops(model, point, "inference") is None
