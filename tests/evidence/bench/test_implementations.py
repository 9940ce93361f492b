"""The same mathematics as the earlier implementations, and none is silently absent."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit import LinformerAttention
from linformer_kit.evidence.bench.implementations import (
    IMPLEMENTATIONS,
    build,
    make_input,
    missing,
    rate_in,
)
from linformer_kit.evidence.bench.settings import Point

POINT = Point(dim=16, num_heads=4, k=5, length=12, batch=2)


def ours_without_input_biases(sharing: str) -> LinformerAttention:
    layer = LinformerAttention(
        dim=POINT.dim,
        num_heads=POINT.num_heads,
        max_length=POINT.length,
        k=POINT.k,
        sharing=sharing,
    ).double()
    for linear in (layer.q_proj, layer.k_proj, layer.v_proj):
        nn.init.zeros_(linear.bias)
    return layer


def inputs(length: int = POINT.length) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (POINT.batch, length, POINT.dim)
    return torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()


def gradients(output: torch.Tensor, wanted: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    upstream = torch.randn(
        output.shape, dtype=output.dtype, generator=torch.Generator().manual_seed(2)
    )
    return torch.autograd.grad(output, wanted, upstream)


@pytest.mark.parametrize("training", [False, True])
def test_with_the_weights_of_linformer_we_give_its_outputs_and_gradients(training):
    theirs = build("linformer", "attention", POINT, dropout=0.0, seed=0).double().train(training)
    ours = ours_without_input_biases("headwise").train(training)
    with torch.no_grad():
        ours.q_proj.weight.copy_(theirs.to_q.weight)
        ours.k_proj.weight.copy_(theirs.to_k.weight)
        ours.v_proj.weight.copy_(theirs.to_v.weight)
        ours.out_proj.weight.copy_(theirs.to_out.weight)
        ours.out_proj.bias.copy_(theirs.to_out.bias)
        ours.projection.weight.copy_(torch.stack((theirs.proj_k.T, theirs.proj_v.T))[:, None])
    x = inputs()
    our_output, their_output = ours(x), theirs(x)
    assert_close(our_output, their_output)
    our_gradients = gradients(
        our_output,
        [
            x,
            ours.q_proj.weight,
            ours.k_proj.weight,
            ours.v_proj.weight,
            ours.out_proj.weight,
            ours.out_proj.bias,
            ours.projection.weight,
        ],
    )
    *their_gradients, their_key, their_value = gradients(
        their_output,
        [
            x,
            theirs.to_q.weight,
            theirs.to_k.weight,
            theirs.to_v.weight,
            theirs.to_out.weight,
            theirs.to_out.bias,
            theirs.proj_k,
            theirs.proj_v,
        ],
    )
    their_gradients.append(torch.stack((their_key.T, their_value.T))[:, None])
    assert_close(our_gradients, tuple(their_gradients))


def test_a_shorter_input_without_rescaling_is_as_in_linformer():
    theirs = build("linformer", "attention", POINT, dropout=0.0, seed=0).double()
    ours = ours_without_input_biases("headwise")
    ours.projection.keep_scale = False
    with torch.no_grad():
        for mine, other in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "out")):
            getattr(ours, f"{mine}_proj").weight.copy_(getattr(theirs, f"to_{other}").weight)
        ours.out_proj.bias.copy_(theirs.to_out.bias)
        ours.projection.weight.copy_(torch.stack((theirs.proj_k.T, theirs.proj_v.T))[:, None])
    x = inputs(length=7)
    assert_close(ours(x), theirs(x))


def test_with_the_weights_of_linformer_pytorch_we_give_its_outputs_and_input_gradients():
    theirs = build("linformer-pytorch", "attention", POINT, dropout=0.0, seed=0).double()
    ours = ours_without_input_biases("kv")
    shared = theirs.heads[0].E
    assert theirs.heads[-1].F is shared
    nn.init.zeros_(shared.bias)  # a bias of E is not in the paper, and we have none
    with torch.no_grad():
        for mine, other in ((ours.q_proj, theirs.to_q), (ours.k_proj, theirs.to_k)):
            mine.weight.copy_(torch.cat([head.weight for head in other]))
        ours.v_proj.weight.copy_(torch.cat([head.weight for head in theirs.to_v]))
        ours.out_proj.load_state_dict(theirs.w_o.state_dict())
        ours.projection.weight.copy_(shared.weight[None, None])
    x = inputs()
    our_output, their_output = ours(x), theirs(x)
    assert_close(our_output, their_output)
    (our_gradient,) = gradients(our_output, [x])
    (their_gradient,) = gradients(their_output, [x])
    assert_close(our_gradient, their_gradient)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("layer", ["attention", "encoder"])
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_implementation_keeps_the_shape_and_comes_from_the_seed(name, layer, dropout):
    x = inputs().float()
    model, again = (build(name, layer, POINT, dropout=dropout, seed=3) for _ in range(2))
    assert model(x).shape == x.shape
    assert_close(model.eval()(x), again.eval()(x))
    assert torch.equal(model.eval()(x), model(x))
    dropped = not torch.equal(model.train()(x), model(x))
    assert dropped == (dropout > 0)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_encoders_have_the_depth_and_the_hidden_size_of_the_point(name):
    deeper = Point(dim=16, num_heads=4, k=5, length=12, depth=2)
    one, two = (
        sum(p.numel() for p in build(name, "encoder", point, dropout=0.0, seed=0).parameters())
        for point in (POINT, deeper)
    )
    hidden = 2 * 16 * 64 + 64 + 16
    attention = 4 * 16 * 16
    assert two - one > hidden + attention


@pytest.mark.parametrize(
    ("name", "package"), [("linformer", "linformer"), ("linformer-pytorch", "linformer_pytorch")]
)
def test_a_missing_peer_is_reported_with_the_remedy(name, package, monkeypatch):
    packages = {name: IMPLEMENTATIONS[name].package for name in ("linformer-kit", name)}
    assert missing(packages) == {}
    monkeypatch.setitem(sys.modules, package, None)  # importing it raises ModuleNotFoundError
    assert list(missing(packages)) == [name]
    assert "pip install 'linformer-kit[peers]'" in missing(packages)[name]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 13}, "k must be at most the length, for it shortens: got k=13, length=12"),
        ({"num_heads": 3}, "dim must be divisible by the number of heads: got dim=16, heads=3"),
        ({"batch": 0}, "batch must be at least 1: got 0"),
        ({"dim": 0}, "dim must be at least 1: got 0"),
    ],
)
def test_sizes_that_mean_nothing_are_refused(wrong, message):
    sizes = {"dim": 16, "num_heads": 4, "k": 5, "length": 12} | wrong
    with pytest.raises(ValueError, match=message):
        Point(**sizes)


def test_the_input_comes_from_the_seed():
    assert torch.equal(make_input(POINT, seed=4), make_input(POINT, seed=4))
    assert not torch.equal(make_input(POINT, seed=4), make_input(POINT, seed=5))


def test_dropout_is_for_its_own_mode():
    assert [rate_in(mode, 0.1) for mode in ("inference", "training", "dropout")] == [0.0, 0.0, 0.1]
