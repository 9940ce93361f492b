"""Attention in blocks of rows: the same outputs and gradients, to the second order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from linformer_kit import LinformerAttention, LinformerEncoder
from linformer_kit.core.compressed_kv import FoldedKV
from linformer_kit.core.cpu import blocks
from linformer_kit.core.cpu.folded_attention import attend_folded_in_blocks
from linformer_kit.core.cpu.predicate import use_cpu_fast_path
from linformer_kit.core.plan import Plan

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
    kv = FoldedKV(score, offset, output).with_bias(bias, heads=HEADS)
    if not use_cpu_fast_path(x):
        return kv.attend(x, None, heads=HEADS)
    return attend_folded_in_blocks(x, kv, heads=HEADS)


def plain(x, score, offset, output, bias):
    kv = FoldedKV(score, offset, output)
    y = kv.mix(kv.weights(x, HEADS))
    return y if bias is None else y + bias


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
    assert torch.autograd.gradgradcheck(blocked, parts, fast_mode=True)
    frozen = [part.detach() if i in (1, 2) else part for i, part in enumerate(parts)]
    assert torch.autograd.gradgradcheck(blocked, frozen, fast_mode=True)


FUSED = Plan(shorten="input", attend="fused")


def fused_layer(*, bias: bool = True, num_kv_heads: int = 2) -> LinformerAttention:
    torch.manual_seed(0)
    layer = LinformerAttention(
        dim=8, num_heads=2, num_kv_heads=num_kv_heads, max_length=9, k=3, bias=bias, plan=FUSED
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


def written_out(layer: LinformerAttention, x: torch.Tensor) -> torch.Tensor:
    """The layer without kernels, blocks or backward passes of its own."""
    kv = layer.compress(x)
    groups = layer.num_heads // kv.key.shape[1]
    key, value = (
        rows.repeat_interleave(groups, dim=1) for rows in (kv.key, kv.value)
    )  # (B, H, R, D)
    query = layer.q_proj(x).unflatten(2, (layer.num_heads, -1)).transpose(1, 2)
    weights = F.softmax(query @ key.mT / layer.head_dim**0.5, dim=-1)
    return layer.out_proj((weights @ value).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("batch", "length"), [(1, 9), (3, 2), (2, 4), (2, 7), (1, 1)])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"num_kv_heads": 1}])
def test_a_fused_layer_by_row_blocks_equals_the_whole(monkeypatch, batch, length, options):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer(**options)
    x = torch.randn(batch, length, 8, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(batch, length, 8, dtype=torch.float64)
    y, expected = layer(x), written_out(layer, x)
    assert_close(y, expected)
    leaves = [x, *layer.parameters()]
    for mine, theirs in zip(
        torch.autograd.grad(y, leaves, upstream),
        torch.autograd.grad(expected, leaves, upstream),
        strict=True,
    ):
        assert_close(mine, theirs)
    with torch.no_grad():
        assert_close(layer(x), expected)


def test_rows_and_gradients_in_any_layout(monkeypatch):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer()
    x = torch.randn(2, 8, 9, dtype=torch.float64).mT.requires_grad_()  # not contiguous
    (grad,) = torch.autograd.grad(layer(x).sum(), x)  # the gradient of a sum is one number
    (expected,) = torch.autograd.grad(written_out(layer, x).sum(), x)
    assert_close(grad, expected)
    with torch.no_grad():
        assert_close(layer(x), written_out(layer, x))


def test_frozen_weights_get_no_gradient(monkeypatch):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer().requires_grad_(False)
    x = torch.randn(1, 9, 8, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x).square().sum(), x)
    (expected,) = torch.autograd.grad(written_out(layer, x).square().sum(), x)
    assert_close(grad, expected)
    layer.q_proj.requires_grad_(True)
    layer(x.detach()).sum().backward()
    trained = {name for name, each in layer.named_parameters() if each.grad is not None}
    assert trained == {"q_proj.weight", "q_proj.bias"}


def test_a_gradient_of_the_gradient_of_a_fused_layer(monkeypatch):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer()
    x = torch.randn(1, 6, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, x, fast_mode=True)
    layer.q_proj.requires_grad_(False)
    assert torch.autograd.gradgradcheck(layer, x, fast_mode=True)


def test_a_fused_layer_as_a_function_of_its_weights(monkeypatch):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer()
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    parameters = {name: each.detach() for name, each in layer.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)(parameters)
    wanted = torch.autograd.grad(written_out(layer, x).square().sum(), list(layer.parameters()))
    for (name, _), theirs in zip(layer.named_parameters(), wanted, strict=True):
        assert_close(found[name], theirs)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # the kernel has no batching rule
@pytest.mark.parametrize("grad", [False, True])
def test_several_fused_layers_at_once(monkeypatch, grad):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer()
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    stacked = {
        name: torch.stack([each.detach(), 2 * each.detach()])
        for name, each in layer.named_parameters()
    }

    def run(parameters):
        return torch.func.functional_call(layer, parameters, (x,))

    with torch.set_grad_enabled(grad):
        both = torch.func.vmap(run)(stacked)
        assert_close(both[0], layer(x))


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("attend", ["fused", "absorbed"])
def test_checkpointing_gives_the_same_gradients(monkeypatch, norm, attend):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    plan = Plan(shorten="input", attend=attend)
    encoder = LinformerEncoder(
        dim=8, depth=2, num_heads=2, max_length=9, k=3, norm=norm, plan=plan
    ).double()
    x = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
    leaves = [x, *encoder.parameters()]
    expected = torch.autograd.grad(encoder(x).square().sum(), leaves)
    encoder.gradient_checkpointing = True
    for mine, theirs in zip(
        torch.autograd.grad(encoder(x).square().sum(), leaves), expected, strict=True
    ):
        assert_close(mine, theirs)


@pytest.mark.parametrize("attend", ["fused", "absorbed"])
@pytest.mark.parametrize("grad", [False, True])
def test_keys_and_values_of_one_sample_are_used_for_many(monkeypatch, attend, grad):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer()
    layer.plan = Plan(shorten="input", attend=attend)
    context, x = (torch.randn(b, 6, 8, dtype=torch.float64) for b in (1, 3))
    x.requires_grad_(grad)
    with torch.set_grad_enabled(grad):
        y = layer.attend(x, layer.compress(context))
        each = [layer.attend(row[None], layer.compress(context)) for row in x]
        assert_close(y, torch.cat(each))
        with pytest.raises(ValueError, match="one sample, or of as many as attend to them: got 2"):
            layer.attend(x, layer.compress(context.expand(2, -1, -1)))
    if grad:
        mine, theirs = (
            torch.autograd.grad(result.square().sum(), [x, *layer.parameters()])
            for result in (y, torch.cat(each))
        )
        assert_close(mine, theirs)


def test_a_memory_in_any_layout(monkeypatch):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer()
    x = torch.randn(1, 9, 8, dtype=torch.float64, requires_grad=True)
    kv = layer.compress(x)
    turned = kv._replace(key=kv.key.mT.contiguous().mT, value=kv.value.mT.contiguous().mT)
    assert_close(layer.attend(x, turned), layer.attend(x, kv))


def test_tied_weights_get_the_gradient_once(monkeypatch):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer()
    layer.out_proj.weight = layer.q_proj.weight
    x = torch.randn(1, 9, 8, dtype=torch.float64)
    mine, theirs = (
        torch.autograd.grad(y.square().sum(), layer.q_proj.weight, create_graph=True)
        for y in (layer(x), written_out(layer, x))
    )
    assert_close(mine, theirs)


def test_hooks_of_the_linear_layers_are_called(monkeypatch):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    layer = fused_layer()
    called = []
    layer.q_proj.register_full_backward_pre_hook(lambda module, grad: called.append("backward"))
    layer(torch.randn(1, 9, 8, dtype=torch.float64)).sum().backward()
    assert called == ["backward"]
    whole = fused_layer()
    forward = whole.out_proj.forward
    whole.out_proj.forward = lambda rows: called.append("forward") or forward(rows)
    whole(torch.randn(1, 9, 8, dtype=torch.float64))
    assert called == ["backward", "forward"]
