"""The fixture of conftest.py does what it says."""

from __future__ import annotations

import torch


def test_uninitialised_memory_is_nan():
    x = torch.zeros(2, dtype=torch.float64)
    for tensor in (torch.empty(3), torch.empty_like(x), x.new_empty(2, 2), x.new_empty((4,))):
        assert tensor.isnan().all()
    assert torch.empty(3, dtype=torch.int64).dtype == torch.int64
