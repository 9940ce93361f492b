"""The fused kernel with derivatives of every order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from linformer_kit.core import sdpa as module
from linformer_kit.core.cpu import flash
from linformer_kit.core.plain_sdpa import plain_sdpa
from linformer_kit.core.sdpa import sdpa

HEADS = pytest.mark.parametrize("groups", [4, 2, 1])
OPTIONS = ["none", "causal", "keys", "chunk", "nothing-visible"]
MASKS = pytest.mark.parametrize("masks", OPTIONS)


def inputs_of(groups: int, *, dtype=torch.float64, queries: int = 5, keys: int = 5):
    generator = torch.Generator().manual_seed(0)

    def rows(heads: int, length: int) -> torch.Tensor:
        # As the layers have them: (B, N, H, D) with heads and rows transposed.
        some = torch.randn(2, length, heads, 3, dtype=torch.float64, generator=generator)
        return some.to(dtype).transpose(1, 2).requires_grad_()

    return rows(4, queries), rows(groups, keys), rows(groups, keys)


def options_of(masks: str) -> dict:
    if masks == "causal":
        return {"causal": True}
    if masks == "chunk":
        return {"mask": torch.ones(5, 5, dtype=torch.bool).tril(1)}
    if masks in ("keys", "nothing-visible"):
        mask = torch.arange(5) < torch.tensor([[3], [0 if masks == "nothing-visible" else 5]])
        return {"mask": mask[:, None, None]}
    return {}


@HEADS
@MASKS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_to_the_bit_what_pytorch_gives(groups, masks, dtype):
    leaves, options = inputs_of(groups, dtype=dtype), options_of(masks)
    upstream = torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = F.scaled_dot_product_attention(
        *leaves,
        attn_mask=options.get("mask"),
        is_causal=options.get("causal", False),
        enable_gqa=groups != 4,
    )
    y = sdpa(*leaves, **options)
    assert torch.equal(y, expected)
    for mine, theirs in zip(
        torch.autograd.grad(y, leaves, upstream),
        torch.autograd.grad(expected, leaves, upstream),
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    with torch.no_grad():
        assert torch.equal(sdpa(*leaves, **options), expected)


@HEADS
@MASKS
def test_plain_operations_give_the_same(groups, masks):
    leaves, options = inputs_of(groups), options_of(masks)
    fused, plain = sdpa(*leaves, **options), plain_sdpa(*leaves, **options)
    assert_close(fused, plain)
    upstream = torch.randn_like(plain)
    assert_close(
        torch.autograd.grad(fused, leaves, upstream), torch.autograd.grad(plain, leaves, upstream)
    )


@HEADS
@MASKS
def test_the_second_derivative_is_the_difference_of_gradients(groups, masks):
    options = options_of(masks)

    def run(*rows):
        return sdpa(*rows, **options)

    assert torch.autograd.gradgradcheck(run, inputs_of(groups), fast_mode=True)
    query, key, value = inputs_of(groups)
    assert torch.autograd.gradgradcheck(run, (query, key.detach(), value), fast_mode=True)


def test_autocast_decides_the_type_and_there_is_a_second_derivative():
    leaves = inputs_of(2, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = sdpa(*leaves)
        expected = F.scaled_dot_product_attention(*leaves, enable_gqa=True)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, expected)
    second = []
    for output in (y, plain_sdpa(*leaves)):
        first = torch.autograd.grad(output.sum(), leaves[:2], create_graph=True)
        total = sum(each.square().sum() for each in first)
        second.append(torch.autograd.grad(total, leaves[:2]))
    assert_close(*second, rtol=0.1, atol=0.1)


def test_weights_are_dropped_one_by_one():
    query, key, value = inputs_of(4)
    torch.manual_seed(0)
    y = sdpa(query, key, value, drop=0.5)
    torch.manual_seed(0)
    expected = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
    assert torch.equal(y, expected)
    torch.manual_seed(0)
    assert_close(plain_sdpa(query, key, value, drop=0.5), expected)


def test_the_choice_of_a_backend_is_respected(monkeypatch):
    monkeypatch.setattr(module, "flash_with_second_derivative", None)  # not to be called
    leaves = inputs_of(4)
    with sdpa_kernel(SDPBackend.MATH):
        assert_close(sdpa(*leaves), plain_sdpa(*leaves))


def test_without_the_private_operators_the_public_one_is_used(monkeypatch):
    monkeypatch.setattr(flash, "HAS_FLASH", False)
    monkeypatch.setattr(module, "flash_with_second_derivative", None)
    leaves = inputs_of(4)
    assert_close(sdpa(*leaves), plain_sdpa(*leaves))
