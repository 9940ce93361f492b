"""What PyTorch users do with a module works on attention, encoder and decoder alike.

Each contract runs with blocks of two rows, so that the CPU fast path is used where it may be, and
compares with an ordinary call. `test_transforms.py` has more of the derivatives.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import jacrev, vmap
from torch.nn.utils import parametrize
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from .samples import DIM, LENGTH, MODELS, build, inputs_of, jacobian, model_of, small_blocks


def gradients(model, x, call=None, **others):
    """Output, gradient of x, and gradients of all parameters, of a loss that is not linear."""
    x = x.clone().requires_grad_()
    torch.manual_seed(3)  # the same dropout in every call
    y = (model if call is None else call)(x, **others)
    return y, torch.autograd.grad(
        y.sin().sum(), [x, *model.parameters()], materialize_grads=True, allow_unused=True
    )


def linears_of(model):
    return [part for part in model.modules() if isinstance(part, nn.Linear)]


def works_under_vmap(name):
    model = model_of(name)
    x, others = inputs_of(name, masked=True)
    several = torch.stack([x, 2 * x])
    together = vmap(lambda x: model(x, **others))(several)
    assert_close(together, torch.stack([model(x, **others) for x in several]))


def works_under_jacrev(name):
    model = model_of(name)
    x, others = inputs_of(name, masked=False)
    assert_close(jacrev(lambda x: model(x, **others))(x), jacobian(model, x, others))


def has_a_second_derivative(name):
    model = model_of(name)
    x, others = inputs_of(name, masked=True)
    leaves = [x.requires_grad_(), *model.parameters()]
    run = lambda x, *_: model(x, **others)  # noqa: E731 - the parameters are those of the model
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True, atol=1e-4)


def calls_forward_hooks(name):
    model = model_of(name)
    x, others = inputs_of(name, masked=True)
    expected = gradients(model, x, **others)
    called = []
    for part in linears_of(model):
        part.register_forward_hook(lambda part, _, y: called.append(part))
    assert_close(gradients(model, x, **others), expected)
    assert set(called) == set(linears_of(model))
    called.clear()
    with torch.no_grad():
        assert_close(model(x, **others), expected[0])
    assert set(called) == set(linears_of(model))
    linears_of(model)[-1].register_forward_hook(lambda part, _, y: 2 * y)
    assert not torch.equal(model(x, **others), expected[0])


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


def uses_parametrizations(name):
    model, doubled = model_of(name), model_of(name)
    x, others = inputs_of(name, masked=True)
    for part in linears_of(model):
        parametrize.register_parametrization(part, "weight", Twice())
    with torch.no_grad():
        for part in linears_of(doubled):
            part.weight *= 2
        assert_close(model(x, **others), doubled(x, **others))
    y, (grad_x, *_) = gradients(model, x, **others)
    expected, (expected_grad_x, *_) = gradients(doubled, x, **others)
    assert_close((y, grad_x), (expected, expected_grad_x))
    weight = linears_of(model)[0].parametrizations.weight.original
    model(x, **others).sum().backward()
    assert weight.grad.isfinite().all()
    assert weight.grad.any()


def works_under_autocast(name):
    model = model_of(name).float()
    x, others = inputs_of(name, masked=True)
    x, others = x.float(), {k: v.float() if v.is_floating_point() else v for k, v in others.items()}
    expected = gradients(model, x, **others)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(model, x, **others)
        with torch.no_grad():
            inferred = model(x, **others)
    assert_close(found[0].float(), expected[0], rtol=0.1, atol=0.1)
    assert_close(inferred.float(), expected[0], rtol=0.1, atol=0.1)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        assert mine.dtype == theirs.dtype
        assert_close(mine, theirs, rtol=0.2, atol=0.2)


def works_under_checkpoints(name, reentrant):
    model = model_of(name, dropout=0.3).train()
    x, others = inputs_of(name, masked=True)

    def call(x):
        return checkpoint(lambda x: model(x, **others), x, use_reentrant=reentrant)

    def grads(call):
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        torch.manual_seed(3)
        y = call(leaf)
        y.sin().sum().backward()
        return y, leaf.grad, [p.grad for p in model.parameters() if p.grad is not None]

    assert_close(grads(call), grads(lambda x: model(x, **others)))


def compiles(name):
    model = model_of(name)
    x, others = inputs_of(name, masked=True)
    expected = gradients(model, x, **others)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(gradients(model, x, call=compiled, **others), expected)


def can_be_deepcopied(name):
    model = model_of(name, dropout=0.3).train()
    x, others = inputs_of(name, masked=True)
    expected = gradients(model, x, **others)  # after a call: what it left behind is copied too
    copied = copy.deepcopy(model)
    assert_close(gradients(copied, x, **others), expected, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert_close(gradients(model, x, **others), expected, rtol=0, atol=0)


def can_be_pickled(name):
    model = model_of(name, dropout=0.3).train()
    x, others = inputs_of(name, masked=True)
    expected = gradients(model, x, **others)
    loaded = pickle.loads(pickle.dumps(model))
    assert_close(gradients(loaded, x, **others), expected, rtol=0, atol=0)


def can_be_built_on_the_meta_device(name):
    # Large enough for statistics.
    sizes = {"dim": 32, "k": 16}
    if "decoder" not in name:
        sizes["max_length"] = 32
    options = [{}] if "decoder" in name else [{"projection": each} for each in ("linear", "fixed")]
    if "encoder" in name:
        options.append({"projection": "conv", "positions": "learned", "neighbours": 3})
        options.append({"moving_average": True})
    for more in options:
        torch.manual_seed(0)
        usual = build(name, **sizes, **more)
        with torch.device("meta"):
            model = build(name, **sizes, **more)
        x, others = inputs_of(name, masked=True)
        x = torch.randn(2, LENGTH, 32)
        others = {k: torch.randn(2, 4, 32) if k == "context" else v for k, v in others.items()}
        on_meta = {k: v.to("meta") for k, v in others.items()}
        assert model(x.to("meta"), **on_meta).shape == x.shape
        model.to_empty(device="cpu")
        model.reset_parameters()
        for (key, mine), theirs in zip(
            model.state_dict().items(), usual.state_dict().values(), strict=True
        ):
            assert mine.isfinite().all(), key
            if theirs.numel() >= 64 and theirs.std() > 0:
                assert 0.6 < mine.std() / theirs.std() < 1.7, key
            elif theirs.std() == 0 or theirs.numel() == 1:
                assert torch.equal(mine, theirs), key
        assert model(x, **others).isfinite().all()


CONTRACTS = {
    "vmap": works_under_vmap,
    "jacrev": works_under_jacrev,
    "double-backward": has_a_second_derivative,
    "forward-hooks": calls_forward_hooks,
    "parametrizations": uses_parametrizations,
    "autocast": works_under_autocast,
    "checkpoint": lambda name: works_under_checkpoints(name, reentrant=False),
    "checkpoint-reentrant": lambda name: works_under_checkpoints(name, reentrant=True),
    "compile": compiles,
    "deepcopy": can_be_deepcopied,
    "pickle": can_be_pickled,
    "meta": can_be_built_on_the_meta_device,
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_module(name, contract, monkeypatch):
    small_blocks(monkeypatch)
    CONTRACTS[contract](name)


def test_the_samples_are_longer_than_a_window_and_a_block():
    assert 2 * build("decoder").layers[0].attention.window < LENGTH
    assert DIM % 2 == 0
