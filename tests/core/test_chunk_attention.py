"""Attention of chunks: the CPU path equals the plain one."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit.core import chunks
from linformer_kit.core.chunks import Keys, attend_chunks, attend_chunks_plain
from linformer_kit.core.cpu import chunk_attention as cpu
from linformer_kit.core.plain_sdpa import hidden_bias, plain_sdpa

SIZES = [
    # B, C, W, P, L, H, G, D
    (2, 5, 3, 3, 4, 4, 2, 2),
    (1, 4, 1, 2, 1, 1, 1, 1),
    (3, 1, 2, 2, 3, 2, 2, 3),
]


def random(*shape, seed=0, learned=False):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(*shape, dtype=torch.double, generator=generator)
    return rows.requires_grad_(learned)


def sample(sizes, *, near, far, near_bias, far_bias, per_chunk):
    """Queries and keys. far_bias: None, "hidden" or "learned"."""
    batch, chunks, window, reach, count, heads, groups, size = sizes
    query = random(batch, chunks, window, heads, size, learned=True)
    near_keys = far_keys = None
    if near:
        bias = None
        if near_bias:
            visible = random(batch, chunks, 1, window, reach * window, seed=1) > 0
            visible[:, -1] = False  # a chunk that sees nothing nearby
            bias = hidden_bias(visible, torch.double)
        shape = (batch, chunks + reach - 1, window, groups, size)
        near_keys = Keys(
            random(*shape, seed=2, learned=True), random(*shape, seed=3, learned=True), bias
        )
    if far:
        bias = None
        if far_bias is not None:
            bias = random(batch, chunks, heads, count, seed=4)
            bias[:, 0, :, 0] = -1e30
            bias.requires_grad_(far_bias == "learned")
        shape = (batch, chunks if per_chunk else 1, count, groups, size)
        far_keys = Keys(
            random(*shape, seed=5, learned=True), random(*shape, seed=6, learned=True), bias
        )
    return query, near_keys, far_keys


def results(run, query, near, far):
    leaves = [each for keys in (near, far) if keys for each in keys if each is not None]
    leaves = [query, *(each for each in leaves if each.requires_grad)]
    y = run(query, near, far)
    upstream = random(*y.shape, seed=7)
    return [y, *torch.autograd.grad(y, leaves, upstream)]


@pytest.mark.parametrize("rows", [1, 6, 10**6], ids=["one-chunk", "some-chunks", "all"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_cpu_path_equals_the_plain_one_in_outputs_and_gradients(sizes, rows, monkeypatch):
    monkeypatch.setattr(cpu, "rows_in_block", lambda width: rows)
    for near, far, far_bias, near_bias, per_chunk in (
        (True, False, None, False, False),
        (True, False, None, True, False),
        (False, True, None, False, False),
        (False, True, "hidden", False, True),
        (False, True, "learned", False, False),
        (True, True, None, False, True),
        (True, True, "hidden", True, False),
        (True, True, "learned", True, False),
        (True, True, "learned", False, True),
    ):
        inputs = sample(
            sizes, near=near, far=far, near_bias=near_bias, far_bias=far_bias, per_chunk=per_chunk
        )
        if near_bias and not far:  # what a query that sees nothing gets is not defined
            inputs[1].bias[..., 0] = 0.0
        assert cpu.use_cpu_chunks(*inputs)
        assert_close(results(attend_chunks, *inputs), results(attend_chunks_plain, *inputs))


@pytest.mark.parametrize("shape", [(1, 1, 1, 4), (2, 1, 4, 4), (1, 5, 1, 4), (2, 1, 1, 4)])
def test_a_learned_bias_may_broadcast(shape, monkeypatch):
    monkeypatch.setattr(cpu, "rows_in_block", lambda width: 6)
    query, near, far = sample(
        SIZES[0], near=True, far=True, near_bias=False, far_bias=None, per_chunk=False
    )
    far = far._replace(bias=random(*shape, learned=True))
    assert_close(
        results(attend_chunks, query, near, far), results(attend_chunks_plain, query, near, far)
    )


def test_a_bias_of_stride_zero():
    """As `log_counts` makes it, of one value for all rows."""
    query, near, far = sample(
        SIZES[0], near=True, far=True, near_bias=False, far_bias=None, per_chunk=False
    )
    far = far._replace(bias=random(2, 5, 1, 1).expand(-1, -1, -1, 4))
    assert_close(
        results(attend_chunks, query, near, far), results(attend_chunks_plain, query, near, far)
    )


def test_a_learned_bias_of_near_keys_has_its_gradient():
    query, near, far = sample(
        SIZES[0], near=True, far=True, near_bias=False, far_bias=None, per_chunk=False
    )
    near = near._replace(bias=random(2, 5, 1, 3, 9, learned=True))
    found = results(attend_chunks, query, near, far)
    assert_close(found, results(attend_chunks_plain, query, near, far))
    assert found[4].any() or found[3].any()


def test_the_plain_path_is_one_softmax_over_near_and_far_keys():
    query, near, far = sample(
        SIZES[0], near=True, far=True, near_bias=True, far_bias="hidden", per_chunk=True
    )
    found = attend_chunks_plain(query, near, far)
    for c in range(5):
        key, value = (
            torch.cat([mine[:, c], *theirs[:, c : c + 3].unbind(1)], dim=1).transpose(1, 2)
            for mine, theirs in ((far.key, near.key), (far.value, near.value))
        )
        sizes = (2, 4, 3, -1)
        bias = torch.cat((far.bias[:, c, :, None].expand(sizes), near.bias[:, c].expand(sizes)), 3)
        wanted = plain_sdpa(query[:, c].transpose(1, 2), key, value, bias=bias)
        assert_close(found[:, c], wanted.transpose(1, 2))


@pytest.mark.parametrize("frozen", ["query", "near", "far", "bias"])
def test_only_the_gradients_that_are_needed(frozen):
    query, near, far = sample(
        SIZES[0], near=True, far=True, near_bias=True, far_bias="learned", per_chunk=False
    )
    frozen = {"query": [query], "near": near[:2], "far": far[:2], "bias": [far.bias]}[frozen]
    for each in frozen:
        each.requires_grad_(False)
    leaves = [query, *near[:2], *far]
    leaves = [each for each in leaves if each.requires_grad]
    found = [
        torch.autograd.grad(run(query, near, far).square().sum(), leaves)
        for run in (attend_chunks, attend_chunks_plain)
    ]
    assert_close(*found)


def test_a_second_derivative():
    query, near, far = sample(
        (1, 2, 2, 2, 2, 2, 1, 2), near=True, far=True, near_bias=True, far_bias="learned",
        per_chunk=False,
    )  # fmt: skip

    def run(query, near_key, near_value, *far):
        return attend_chunks(query, Keys(near_key, near_value, near.bias), Keys(*far))

    leaves = (query, *near[:2], *far)
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


def test_where_the_kernel_cannot_be_used_the_plain_path_is():
    inputs = sample(
        SIZES[0], near=True, far=True, near_bias=True, far_bias="learned", per_chunk=False
    )
    assert cpu.use_cpu_chunks(*inputs)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert not cpu.use_cpu_chunks(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert not cpu.use_cpu_chunks(*inputs)
    assert not cpu.use_cpu_chunks(inputs[0].half(), *inputs[1:])
    assert chunks.attend_chunks(*(inputs[0], inputs[1], None)).isfinite().all()
