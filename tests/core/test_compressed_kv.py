"""What queries attend to: a folded kv with a bias, and rows that are hidden."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit.core.compressed_kv import CompressedKV, fold


@pytest.mark.parametrize("hidden", [0, 2, 3])
def test_a_bias_comes_with_the_rows_of_one_head(hidden):
    torch.manual_seed(0)
    q_proj, out_proj = nn.Linear(8, 8).double(), nn.Linear(8, 8).double()
    key, value = (torch.randn(1, 2, 3, 4, dtype=torch.float64) for _ in range(2))
    keep = torch.arange(3)[None] >= hidden
    kv = fold(CompressedKV(key, value, keep), q_proj, out_proj, num_heads=2)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    weights = kv.weights(x, 2)
    assert_close(kv.with_bias(out_proj.bias, heads=2).mix(weights), kv.mix(weights) + out_proj.bias)
