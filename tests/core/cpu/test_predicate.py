"""One predicate for every fast path: where it says no, no fast path runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.testing import assert_close

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.core.cpu import (
    attention,
    dropout,
    feedforward,
    flash,
    folded_attention,
    linear,
    predicate,
    shared_gradient,
)
from linformer_kit.core.cpu.predicate import eager_on_cpu, plain_gradients, use_cpu_fast_path

FUNCTIONS = [
    (attention, "_Attention"),
    (folded_attention, "_FoldedAttention"),
    (dropout, "_Drop"),
    (feedforward, "_BlockedFeedForward"),
    (flash, "_Flash"),
    (linear, "_Linear"),
    (shared_gradient, "_MatmulSharingGradient"),
]


def asked(seen: list[bool]):
    """A function of x that notes what the predicate says."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        seen.append(use_cpu_fast_path(x))
        return x.sum()

    return fn


def test_yes_for_ordinary_tensors_and_plain_layers():
    x, linear = torch.randn(2, 3, 4), nn.Linear(4, 4)
    assert use_cpu_fast_path(x, linear)
    with torch.no_grad():
        assert use_cpu_fast_path(x, linear)


def test_no_under_every_transform():
    x, seen = torch.randn(3, 4), []
    vmap(asked(seen))(x)
    grad(asked(seen))(x)
    jvp(asked(seen), (x,), (x,))
    with forward_ad.dual_level():
        asked(seen)(x)
    assert seen == [False] * 4
    assert use_cpu_fast_path(x)


def test_no_where_only_a_parameter_is_wrapped():
    x, layer, seen = torch.randn(2, 4), nn.Linear(4, 1), []
    layer.forward = lambda x: seen.append(use_cpu_fast_path(x)) or (x @ layer.weight.t()).sum()
    weights = {"weight": layer.weight.detach(), "bias": layer.bias.detach()}
    grad(lambda weights: functional_call(layer, weights, (x,)))(weights)
    assert seen == [False]


@pytest.mark.parametrize("condition", ["autocast", "device", "empty", "compiling", "type", "hook"])
def test_no_for_what_the_fast_path_cannot_do(condition, monkeypatch):
    x, linear = torch.randn(2, 3, 4), nn.Linear(4, 4)
    if condition == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            assert not use_cpu_fast_path(x, linear)
            assert eager_on_cpu(x)  # so that values may decide
        return
    if condition == "device":
        x = x.to("meta")
    if condition == "empty":
        x = x[:0]
    if condition == "compiling":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    if condition == "type":
        x = x.double()
    if condition == "hook":
        linear.register_forward_hook(lambda *_: None)
    assert not use_cpu_fast_path(x, linear)


@pytest.mark.parametrize("attention", ["encoder", "slots", "full"])
def test_no_fast_path_runs_under_a_transform(attention, monkeypatch):
    torch.manual_seed(0)
    sizes = {"dim": 8, "depth": 1, "num_heads": 2, "k": 2, "dropout": 0.1}
    if attention == "encoder":
        model = LinformerEncoder(**sizes, max_length=6)
    else:
        model = LinformerDecoder(
            **sizes, window=2, attention=attention, cross_attention=True, context_k=2
        )
    x = torch.randn(2, 6, 8)
    others = {} if attention == "encoder" else {"context": x}
    for where, name in FUNCTIONS:
        monkeypatch.setattr(where, name, None)
    vmap(lambda x: model(x, **others), randomness="different")(x.expand(3, *x.shape))
    jvp(lambda x: model(x, **others), (x,), (x,))
    with torch.no_grad():
        model.eval()
        vmap(lambda x: model(x, **others))(x.expand(3, *x.shape))
    with pytest.raises((AttributeError, TypeError)):
        model(x, **others)


def test_plain_gradients_of_what_is_needed_alone():
    a, b = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    upstream = torch.randn(3, dtype=torch.float64)
    with torch.no_grad():  # as in a backward pass
        found = plain_gradients(lambda a, b, c: a.sin() * b, (a, b, None), upstream, (True, False))
        tied = plain_gradients(lambda a, b: a * b, (a, a), upstream, (True, True))
    assert found[1] is None
    assert not found[0].requires_grad
    assert_close(found[0], upstream * a.cos() * b)
    assert_close(tied, (upstream * a, upstream * a))  # one gradient for each of the two
    (with_graph,) = plain_gradients(lambda a: a.sin(), (a,), upstream, (True,))
    assert_close(torch.autograd.grad(with_graph.sum(), a)[0], -upstream * a.sin())


def test_upstream_gradients_of_every_kind_are_told_apart():
    told = []

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, upstream):
            told.append(predicate.needs_plain_backward(upstream))
            return 2 * upstream

    x = torch.randn(3, requires_grad=True)
    y = Twice.apply(x)
    torch.autograd.grad(y, x, torch.ones(3), retain_graph=True)
    torch.autograd.grad(y, x, torch.ones(3), create_graph=True)
    torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True)
    with forward_ad.dual_level():
        torch.autograd.grad(y, x, forward_ad.make_dual(torch.ones(3), torch.ones(3)))
    assert told == [False, True, True, True]
