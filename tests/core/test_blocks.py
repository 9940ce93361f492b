"""Row blocks give what the whole gives."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.core import blocks


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 10), (3, 4), (7, 3), (2, 11)])
def test_every_row_is_done_once_with_its_own_sample(monkeypatch, batch, length):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    x = torch.randn(batch, length, 2)
    offset = torch.arange(batch)[:, None, None]
    sizes = []

    def add(samples, rows, again):
        sizes.append(rows.shape[0] * rows.shape[1])
        return rows + again + offset[samples]

    with torch.no_grad():
        result = blocks.in_row_blocks(add, x, x, width=2)
    assert torch.equal(result, 2 * x + offset)
    assert sum(sizes) == batch * length
    assert max(sizes) <= 4


def test_with_gradients_there_is_one_block():
    calls = []
    blocks.in_row_blocks(lambda samples, x: calls.append(x) or x, torch.randn(9, 9, 2), width=2**30)
    assert len(calls) == 1
