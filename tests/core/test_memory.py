"""Folded memories: by blocks of rows the same outputs and gradients, to the second order."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit.core import blocks
from linformer_kit.core.memory import FoldedMemory, attend_folded

HEADS, ROWS, DIM = 2, 3, 5


def parts_of(batch: int, length: int, *, offset: bool, bias: bool) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()

    folded = HEADS * ROWS
    return [
        leaf(batch, length, DIM),
        leaf(batch, folded, DIM),
        leaf(batch, 1, folded) if offset else None,
        leaf(batch, folded, DIM),
        leaf(DIM) if bias else None,
    ]


def blocked(x, score, offset, output, bias):
    return attend_folded(x, FoldedMemory(score, offset, output), bias, HEADS)


def plain(x, score, offset, output, bias):
    memory = FoldedMemory(score, offset, output)
    return memory.mix(memory.weights(x, HEADS), bias)


@pytest.mark.parametrize(("batch", "length"), [(1, 9), (3, 2), (2, 4), (1, 1)])
@pytest.mark.parametrize("optional", [True, False])
def test_training_by_row_blocks_equals_the_whole(monkeypatch, batch, length, optional):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    parts = parts_of(batch, length, offset=optional, bias=optional)
    leaves = [part for part in parts if part is not None]
    upstream = torch.randn(batch, length, DIM, dtype=torch.float64)
    y, expected = blocked(*parts), plain(*parts)
    assert_close(y, expected)
    for mine, theirs in zip(
        torch.autograd.grad(y, leaves, upstream),
        torch.autograd.grad(expected, leaves, upstream),
        strict=True,
    ):
        assert_close(mine, theirs)


@pytest.mark.parametrize(("batch", "length"), [(1, 9), (3, 2), (2, 4), (1, 1)])
@pytest.mark.parametrize("optional", [True, False])
def test_inference_by_row_blocks_equals_the_whole(monkeypatch, batch, length, optional):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    parts = parts_of(batch, length, offset=optional, bias=optional)
    with torch.no_grad():
        assert_close(blocked(*parts), plain(*parts))


@pytest.mark.parametrize("grad", [False, True])
def test_functional_transforms_go_through(grad):
    _, *rest = parts_of(2, 3, offset=True, bias=True)
    several = torch.randn(4, 2, 3, DIM, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        expected = torch.stack([plain(x, *rest) for x in several])
        assert_close(torch.func.vmap(lambda x: blocked(x, *rest))(several), expected)
        y, _ = torch.func.jvp(lambda x: blocked(x, *rest), (several[0],), (several[1],))
        assert_close(y, expected[0])


def test_a_gradient_of_the_gradient():
    parts = parts_of(2, 3, offset=True, bias=True)
    assert torch.autograd.gradgradcheck(blocked, parts)
    frozen = [part.detach() if i in (1, 2) else part for i, part in enumerate(parts)]
    assert torch.autograd.gradgradcheck(blocked, frozen)
