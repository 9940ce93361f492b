"""Derivatives of every order and the transforms of torch.func, on attention, encoder and decoder.

Oracles: a loop over ordinary calls, ordinary first-order gradients, and finite differences of them.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vmap,
)
from torch.testing import assert_close

from linformer_kit import LinformerEncoder, Plan
from linformer_kit.core.projection_kinds import NOT_A_MATRIX, PROJECTIONS

from .samples import DECODERS, LENGTH, MODELS, inputs_of, jacobian, model_of, rows_of, small_blocks

EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
MASKED = pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])


def last_of(x: torch.Tensor, others: dict) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The sample with padding alone, where every value has a derivative of its own to check."""
    return x[1:], {key: each[1:] for key, each in others.items()}


@EVERY_MODEL
@MASKED
@pytest.mark.parametrize("grad_mode", [False, True], ids=["no-grad", "grad"])
def test_vmap_is_a_loop(name, masked, grad_mode):
    model = model_of(name)
    x, others = inputs_of(name, masked)
    several = torch.stack([x, 2 * x, x.flip(1)])
    with torch.set_grad_enabled(grad_mode):
        together = vmap(lambda x: model(x, **others))(several)
        assert_close(together, torch.stack([model(x, **others) for x in several]))


@EVERY_MODEL
def test_vmap_over_the_mask(name):
    model = model_of(name)
    x, others = inputs_of(name, masked=True)
    mask = others.pop("mask")
    masks = torch.stack([mask, mask.flip(0), torch.ones_like(mask)])
    together = vmap(lambda mask: model(x, mask=mask, **others))(masks)
    assert_close(together, torch.stack([model(x, mask=mask, **others) for mask in masks]))


@EVERY_MODEL
@MASKED
@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_jacobians_are_those_of_backward(name, masked, transform):
    model = model_of(name)
    x, others = last_of(*inputs_of(name, masked))
    assert_close(transform(lambda x: model(x, **others))(x), jacobian(model, x, others))


@EVERY_MODEL
@MASKED
def test_forward_mode_agrees_with_backward(name, masked):
    model = model_of(name)
    x, others = inputs_of(name, masked)
    parameters = {key: each.detach() for key, each in model.named_parameters()}
    tangents = {key: torch.randn_like(each) for key, each in parameters.items()}
    direction, upstream = rows_of(2, LENGTH, seed=3), rows_of(2, LENGTH, seed=4)

    def run(x, parameters):
        return functional_call(model, parameters, (x,), others)

    y, tangent = jvp(run, (x, parameters), (direction, tangents))
    leaf = x.clone().requires_grad_()
    expected = model(leaf, **others)
    assert_close(y, expected)
    leaves = [leaf, *model.parameters()]
    grads = torch.autograd.grad(expected, leaves, upstream, allow_unused=True)
    pairs = zip(grads, [direction, *tangents.values()], strict=True)
    by_backward = sum((g * t).sum() for g, t in pairs if g is not None)
    assert_close((tangent * upstream).sum(), by_backward)


@EVERY_MODEL
@pytest.mark.parametrize("grad_mode", [False, True], ids=["no-grad", "grad"])
def test_dual_numbers_go_through(name, grad_mode):
    model = model_of(name)
    x, others = inputs_of(name, masked=True)
    direction = rows_of(2, LENGTH, seed=3)
    with torch.set_grad_enabled(grad_mode), forward_ad.dual_level():
        dual = model(forward_ad.make_dual(x, direction), **others)
        tangent = forward_ad.unpack_dual(dual).tangent
    expected = torch.einsum("abcxyz,xyz->abc", jacobian(model, x, others), direction)
    assert_close(tangent, expected)


@EVERY_MODEL
@MASKED
def test_grad_of_functional_call(name, masked):
    model = model_of(name)
    x, others = inputs_of(name, masked)
    parameters = {key: each.detach() for key, each in model.named_parameters()}
    found = grad(lambda p: functional_call(model, p, (x,), others).square().sum())(parameters)
    loss = model(x, **others).square().sum()
    expected = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    for mine, theirs in zip(found.values(), expected, strict=True):
        assert_close(mine, torch.zeros_like(mine) if theirs is None else theirs)


@EVERY_MODEL
@MASKED
def test_gradients_of_each_sample(name, masked):
    model = model_of(name)
    x, others = inputs_of(name, masked)
    parameters = {key: each.detach() for key, each in model.named_parameters()}

    def loss(parameters, x, others):
        others = {key: each[None] for key, each in others.items()}
        return functional_call(model, parameters, (x[None],), others).square().sum()

    in_dims = (None, 0, 0 if others else None)
    each = vmap(grad(loss), in_dims=in_dims)(parameters, x, others)
    together = grad(lambda p: functional_call(model, p, (x,), others).square().sum())(parameters)
    for key, expected in together.items():
        assert_close(each[key].sum(0), expected)
        alone = grad(loss)(parameters, x[1], {key: value[1] for key, value in others.items()})
        assert_close(each[key][1], alone[key])
    losses = vmap(loss, in_dims=in_dims)
    assert_close(grad(lambda p: losses(p, x, others).sum())(parameters), together)


@EVERY_MODEL
@MASKED
@pytest.mark.parametrize("grad_mode", [False, True], ids=["no-grad", "grad"])
def test_an_ensemble_is_a_loop_over_its_models(name, masked, grad_mode):
    models = [model_of(name, seed=seed) for seed in range(3)]
    x, others = inputs_of(name, masked)
    stacked = stack_module_state(models)
    with torch.set_grad_enabled(grad_mode):
        together = vmap(lambda *state: functional_call(models[0], state, (x,), others))(*stacked)
        assert_close(together, torch.stack([model(x, **others) for model in models]))


def hessian_by_differences(model: nn.Module, x: torch.Tensor, others: dict) -> torch.Tensor:
    """Central differences of ordinary gradients of sum(sin(y))."""

    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model(x, **others).sin().sum(), x)[0]

    step = 1e-5
    rows = []
    for index in range(x.numel()):
        shift = torch.zeros_like(x).flatten()
        shift[index] = step
        shift = shift.view_as(x)
        rows.append((gradient(x + shift) - gradient(x - shift)) / (2 * step))
    return torch.stack(rows).view(*x.shape, *x.shape)


@EVERY_MODEL
@MASKED
@pytest.mark.parametrize("plain", [False, True], ids=["functional", "torch.func"])
def test_hessians_are_the_differences_of_gradients(name, masked, plain):
    model = model_of(name)
    x, others = last_of(*inputs_of(name, masked))

    def loss(x):
        return model(x, **others).sin().sum()

    expected = hessian_by_differences(model, x, others)
    if plain:
        found = hessian(loss)(x)
    else:
        functional = torch.autograd.functional
        direction = rows_of(1, LENGTH, seed=3)
        found = functional.hessian(loss, x, vectorize=True)
        product = torch.einsum("abcxyz,xyz->abc", expected, direction)
        for of in (functional.vhp, functional.hvp):
            assert_close(of(loss, x, direction)[1], product, rtol=1e-6, atol=1e-7)
    assert_close(found, expected, rtol=1e-6, atol=1e-7)


@EVERY_MODEL
def test_batched_upstream_gradients_are_a_loop(name, monkeypatch):
    small_blocks(monkeypatch)
    model = model_of(name)
    x, others = inputs_of(name, masked=False)
    x.requires_grad_()
    y = model(x, **others)
    upstream = rows_of(3, 2, LENGTH, seed=3)
    leaves = [x, *model.parameters()]
    together = torch.autograd.grad(
        y, leaves, upstream, is_grads_batched=True, retain_graph=True, allow_unused=True
    )
    for index, each in enumerate(upstream):
        expected = torch.autograd.grad(y, leaves, each, retain_graph=True, allow_unused=True)
        for mine, theirs in zip(together, expected, strict=True):
            if theirs is not None:
                assert_close(mine[index], theirs)


def check_second_order(
    model: nn.Module, x: torch.Tensor, *, frozen: bool = False, near: float = 1e-5, **others
) -> None:
    """Hessian times a vector, for x and every parameter, is the difference of ordinary gradients.

    Of a loss whose upstream gradient is constant, and of one whose is not.
    """
    leaves = [x.clone().requires_grad_()]
    leaves += [] if frozen else [each for each in model.parameters() if each.requires_grad]
    model.requires_grad_(not frozen)
    generator = torch.Generator().manual_seed(5)
    vector = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in leaves]

    for outer in (torch.sum, lambda y: y.sin().sum()):

        def gradients(outer=outer, **options):
            torch.manual_seed(7)  # the same dropout in every call
            loss = outer(model(leaves[0], **others))
            return torch.autograd.grad(loss, leaves, allow_unused=True, **options)

        def moved(step, gradients=gradients):
            with torch.no_grad():
                for leaf, part in zip(leaves, vector, strict=True):
                    leaf += step * part
            return gradients()

        first = gradients(create_graph=True)
        product = sum((g * v).sum() for g, v in zip(first, vector, strict=True) if g is not None)
        found = torch.autograd.grad(product, leaves, allow_unused=True)
        step = 1e-6
        above, below = moved(step), moved(-2 * step)
        moved(step)
        for mine, high, low in zip(found, above, below, strict=True):
            if high is not None:
                expected = (high - low) / (2 * step)
                mine = torch.zeros_like(expected) if mine is None else mine
                assert_close(mine, expected, rtol=near, atol=near)


PLANS = [Plan("input", "fused"), Plan("input", "absorbed"), Plan("keys", "fused")]


@pytest.mark.parametrize("name", ["attention", "encoder"])
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("plan", PLANS, ids=["fused", "absorbed", "keys"])
@pytest.mark.parametrize("long", [False, True], ids=["one-block", "blocks"])
def test_second_order_with_every_projection_and_plan(name, projection, plan, long, monkeypatch):
    if projection in NOT_A_MATRIX and plan.shorten == "keys":
        pytest.skip("max pooling is defined on the input alone")
    if long:
        small_blocks(monkeypatch)
    model = model_of(name, projection=projection, plan=plan)
    for masked in (False, True) if long else (True,):
        x, others = inputs_of(name, masked)
        check_second_order(model, x, **others)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("long", [False, True], ids=["one-block", "blocks"])
@MASKED
def test_second_order_of_decoders(name, long, masked, monkeypatch):
    if long:
        small_blocks(monkeypatch)
    model = model_of(name)
    x, others = inputs_of(name, masked)
    check_second_order(model, x, **others)


@EVERY_MODEL
@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_heads": 1},
        {"bias": False},
        {"dropout": 0.3},
        {"norm": "post", "activation": "swiglu", "activation_dropout": 0.3},
        {"gradient_checkpointing": True, "dropout": 0.3},
    ],
    ids=["head-groups", "no-bias", "dropout", "post-swiglu", "checkpointing"],
)
@pytest.mark.parametrize("frozen", [False, True], ids=["all", "input"])
def test_second_order_with_options(name, options, frozen, monkeypatch):
    if "attention" in name and not options.keys() <= {"num_kv_heads", "bias", "dropout"}:
        pytest.skip("an option of whole layers")
    small_blocks(monkeypatch)
    x, others = inputs_of(name, masked=True)
    check_second_order(model_of(name, **options).train(), x, frozen=frozen, **others)


def test_second_order_with_dropout_of_single_weights(monkeypatch):
    small_blocks(monkeypatch)
    x, others = inputs_of("encoder", masked=True)
    for plan in PLANS:
        model = model_of("encoder", plan=plan, attention_dropout=0.3, dropout_kind="weights")
        check_second_order(model.train(), x, **others)


@pytest.mark.parametrize("length", [7, 4096])
@pytest.mark.parametrize("attend", ["fused", "absorbed"])
def test_second_order_is_the_same_at_every_length(length, attend):
    torch.manual_seed(0)
    plan = Plan("input", attend)
    model = LinformerEncoder(dim=8, depth=1, num_heads=2, max_length=length, k=4, plan=plan)
    x = torch.randn(1, length, 8, dtype=torch.float64)
    check_second_order(model.double(), x, near=1e-3)


@pytest.mark.parametrize("attend", ["fused", "absorbed"])
def test_third_order_of_attention_and_feed_forward(attend, monkeypatch):
    small_blocks(monkeypatch)
    attention = model_of("attention", plan=Plan("input", attend))
    feed_forward = model_of("encoder").layers[0].feed_forward
    # Without norms: the third derivative of PyTorch's own layer norm is wrong.

    def second(x):
        y = feed_forward(attention(x)).sin().sum()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(second, rows_of(1, LENGTH).requires_grad_(), fast_mode=True)


@EVERY_MODEL
@pytest.mark.parametrize("kind", ["rows", "weights"])
def test_vmap_decides_about_the_randomness_of_dropout(name, kind):
    options = {} if "decoder" in name else {"dropout_kind": kind}
    model = model_of(name, dropout=0.5, **options).train()
    x, others = inputs_of(name, masked=True)
    several = x.expand(6, *x.shape)

    def run(randomness):
        return vmap(lambda x: model(x, **others), randomness=randomness)(several)

    same, different = run("same"), run("different")
    assert_close(same, same[:1].expand_as(same))
    assert not torch.equal(different, different[:1].expand_as(different))
    with pytest.raises(RuntimeError, match="random operation"):
        run("error")


@pytest.mark.parametrize("name", [name for name in MODELS if "attention" not in name])
def test_transforms_take_a_model_that_checkpoints(name):
    model = model_of(name, gradient_checkpointing=True).train()
    x, others = inputs_of(name, masked=True)
    parameters = {key: each.detach() for key, each in model.named_parameters()}

    def loss(parameters):
        return functional_call(model, parameters, (x,), others).square().sum()

    found = grad(loss)(parameters)
    model.gradient_checkpointing = False
    assert_close(found, grad(loss)(parameters))


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_s_state_goes_through_vmap(name):
    model = model_of(name).eval()
    x, others = inputs_of(name, masked=False)
    several = torch.stack([x, 2 * x])

    def run(x):
        state = model.init_state(2, **others)
        first, state = model(x[:, :3], state=state)
        more = []
        for token in x[:, 3:].split(1, dim=1):
            y, state = model.step(token, state)
            more.append(y)
        return torch.cat([first, *more], dim=1)

    assert_close(vmap(run)(several), torch.stack([run(x) for x in several]))
    _, tangent = jvp(run, (x,), (x,))
    assert_close(tangent, jvp(lambda x: model(x, **others), (x,), (x,))[1])
