"""Row blocks give what the whole gives."""

from __future__ import annotations

import pytest
import torch

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.core.cpu import blocks


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
        result = blocks.map_row_blocks(add, x, x, width=2, training=False)
    assert torch.equal(result, 2 * x + offset)
    assert sum(sizes) == batch * length
    assert max(sizes) <= 4


def test_with_gradients_there_is_one_block():
    calls = []
    x = torch.randn(9, 9, 2)
    blocks.map_row_blocks(lambda samples, x: calls.append(x) or x, x, width=2**30, training=False)
    assert len(calls) == 1


@pytest.mark.parametrize("length", [3, 5])
def test_samples_in_groups_are_done_once_each(monkeypatch, length):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 8)
    x = torch.randn(5, length, 2)
    sizes = []

    def twice(samples):
        sizes.append(x[samples].shape[0])
        return 2 * x[samples]

    with torch.no_grad():
        assert torch.equal(blocks.map_sample_groups(twice, x, width=2, training=False), 2 * x)
    assert sizes == ([2, 2, 1] if length == 3 else [1] * 5)


@pytest.mark.parametrize("k", [2, 8])  # folded, and not
@pytest.mark.parametrize("masked", [False, True])
def test_layers_give_the_same_in_groups_of_samples(monkeypatch, k, masked):
    torch.manual_seed(0)
    sizes = {"dim": 16, "depth": 2, "num_heads": 2}
    encoder = LinformerEncoder(**sizes, max_length=12, k=k).eval()
    decoder = LinformerDecoder(
        **sizes, k=k, window=3, cross_attention=True, context_k=k, context_max_length=12
    ).eval()
    x = torch.randn(5, 12, 16)
    mask = torch.arange(12) < torch.tensor([12, 7, 1, 12, 9])[:, None] if masked else None

    def both():
        context = encoder(x, mask=mask)
        return context, decoder(x, mask=mask, context=context, context_mask=mask)

    whole = both()  # with gradients there are no groups
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 24)
    with torch.no_grad():
        for grouped, expected in zip(both(), whole, strict=True):
            torch.testing.assert_close(grouped, expected)
