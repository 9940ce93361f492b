"""LinformerAttention: equal to the reference, whatever the order; padding and length hold."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit import LinformerAttention, Plan, resize_max_length
from linformer_kit.core.projection_kinds import NOT_A_MATRIX, PROJECTIONS, SHARINGS

from .oracle import answer

PLANS = [Plan(shorten, attend) for shorten in ("input", "keys") for attend in ("fused", "absorbed")]


def layer_of(projection="linear", sharing="kv", **options) -> LinformerAttention:
    torch.manual_seed(0)
    sizes = {"dim": 12, "num_heads": 4, "max_length": 10, "k": 3} | options
    layer = LinformerAttention(projection=projection, sharing=sharing, **sizes).double()
    for parameter in layer.parameters():  # biases too, or their part would go untested
        nn.init.normal_(parameter, std=0.4)
    return layer


def rows_of(batch: int, length: int, dim: int = 12, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, dim, dtype=torch.float64, generator=generator)


def right_padding(*lengths: int, to: int) -> torch.Tensor:
    return torch.arange(to)[None] < torch.tensor(lengths)[:, None]


def assert_equals_reference(layer: LinformerAttention, x: torch.Tensor, **inputs) -> None:
    """Outputs, and gradients of the inputs and of every parameter."""
    leaves = [x.requires_grad_(), *layer.parameters()]
    if "context" in inputs:
        leaves.append(inputs["context"].requires_grad_())
    ours = layer(x, **inputs)
    expected, _ = answer(layer, x, **inputs)
    assert_close(ours, expected)
    upstream = torch.randn(ours.shape, dtype=ours.dtype, generator=torch.Generator().manual_seed(3))
    for mine, theirs in zip(
        torch.autograd.grad(ours, leaves, upstream, allow_unused=True),
        torch.autograd.grad(expected, leaves, upstream, allow_unused=True),
        strict=True,
    ):
        zero = torch.zeros(())
        assert_close(zero if mine is None else mine, zero if theirs is None else theirs)


@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_equals_the_reference_in_outputs_and_gradients(
    projection, sharing, masked, cross, training
):
    layer = layer_of(projection, sharing).train(training)
    x = rows_of(2, 7)
    inputs = {}
    if cross:
        inputs["context"] = rows_of(2, 9, seed=2)
        if masked:
            inputs["context_mask"] = right_padding(5, 9, to=9)
    if masked:
        inputs["mask"] = right_padding(7, 4, to=7)
    assert_equals_reference(layer, x, **inputs)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("bias", [False, True], ids=["no-bias", "bias"])
def test_every_order_of_multiplication_gives_the_same(projection, sharing, plan, bias):
    if projection in NOT_A_MATRIX and plan.shorten == "keys":
        pytest.skip("max pooling is defined on the input alone")
    layer = layer_of(projection, sharing, plan=plan, bias=bias, out_bias=not bias)
    assert_equals_reference(layer, rows_of(2, 7), mask=right_padding(7, 4, to=7))


@pytest.mark.parametrize("plan", [None, *PLANS], ids=str)
@pytest.mark.parametrize("sharing", ["none", "kv"])
@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize("projection", ["linear", "conv", "dynamic", "full"])
def test_grouped_key_value_heads_and_free_head_size(projection, num_kv_heads, sharing, plan):
    layer = layer_of(projection, sharing, num_kv_heads=num_kv_heads, head_dim=5, plan=plan)
    assert_equals_reference(layer, rows_of(2, 7), mask=right_padding(7, 4, to=7))


def test_context_of_another_width():
    layer = layer_of("linear", "kv", context_dim=6)
    assert_equals_reference(layer, rows_of(1, 3), context=rows_of(1, 8, dim=6))


@pytest.mark.parametrize("keep_scale", [True, False])
@pytest.mark.parametrize("projection", ["linear", "fixed", "conv"])
def test_keep_scale_is_the_reference_s(projection, keep_scale):
    layer = layer_of(projection, "headwise", keep_scale=keep_scale)
    assert_equals_reference(layer, rows_of(2, 6), mask=right_padding(6, 2, to=6))


@pytest.mark.parametrize("projection", ["linear", "full"])
def test_identity_projection_is_pytorch_s_multi_head_attention(projection):
    layer = layer_of(projection, "headwise", k=8, max_length=8)
    theirs = nn.MultiheadAttention(12, 4, batch_first=True).double()
    if layer.projection is not None:
        with torch.no_grad():
            layer.projection.weight.copy_(torch.eye(8).expand(2, 1, 8, 8))
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.cat((layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight))
        )
        theirs.in_proj_bias.copy_(
            torch.cat((layer.q_proj.bias, layer.k_proj.bias, layer.v_proj.bias))
        )
        theirs.out_proj.weight.copy_(layer.out_proj.weight)
        theirs.out_proj.bias.copy_(layer.out_proj.bias)
    x = rows_of(2, 8)
    expected, weights = theirs(x, x, x, average_attn_weights=False)
    assert_close(layer(x), expected)
    assert_close(layer.weights(x), weights)


@pytest.mark.parametrize("sharing", ["none", "kv"])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_weights_are_the_reference_s(projection, sharing):
    layer = layer_of(projection, sharing)
    x, mask = rows_of(2, 7), right_padding(7, 4, to=7)
    _, expected = answer(layer, x, mask=mask)
    ours = layer.weights(x, mask=mask)
    for b, h in itertools.product(range(2), range(4)):
        present = expected[b][h].shape[1]
        assert_close(ours[b, h, :, :present], expected[b][h])
        assert ours[b, h, :, present:].eq(0).all()


@pytest.mark.parametrize("plan", [None, PLANS[1]], ids=["default", "absorbed"])
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_trace_computes_the_output_from_the_weights_it_returns(projection, cross, plan):
    layer = layer_of(projection, num_kv_heads=2, plan=plan)
    x, inputs = rows_of(2, 7), {"mask": right_padding(7, 4, to=7)}
    if cross:
        inputs |= {"context": rows_of(2, 9, seed=2), "context_mask": right_padding(5, 9, to=9)}
    output, weights = layer.trace(x, **inputs)
    assert_close(output, layer(x, **inputs))
    assert_close(weights, layer.weights(x, **inputs))
    upstream = rows_of(2, 7, seed=3)
    (grad,) = torch.autograd.grad(output, weights, upstream)
    # The output is a sum over heads and rows of weight * (value of the row through W_o).
    context, mask = inputs.get("context", x), inputs.get("context_mask", inputs["mask"])
    kv = layer.compress(context, mask=mask, fold=False)
    value = kv.value.repeat_interleave(2, dim=1)  # (B, H, R, D)
    maps = layer.out_proj.weight.unflatten(1, (4, -1))  # (M, H, D)
    expected = torch.einsum("bnm,mhd,bhrd->bhnr", upstream, maps, value)
    assert_close(grad, expected.masked_fill(~inputs["mask"][:, None, :, None], 0.0))


def test_a_folded_memory_has_no_weights():
    layer = layer_of(plan=PLANS[1])
    x = rows_of(1, 7)
    with pytest.raises(ValueError, match="fold=False"):
        layer.attend_with_weights(x, layer.compress(x))


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_padding_content_never_changes_an_output_or_a_gradient(projection, garbage):
    for sharing, plan in itertools.product(("none", "kv"), (None, *PLANS)):
        if projection in NOT_A_MATRIX and plan is not None and plan.shorten == "keys":
            continue
        layer = layer_of(projection, sharing, plan=plan)
        mask = right_padding(7, 4, to=7)
        x = rows_of(2, 7)
        clean = torch.where(mask[..., None], x, 0.0).requires_grad_()
        dirty = torch.where(mask[..., None], x, garbage).requires_grad_()
        results = []
        for inputs in (clean, dirty):
            y = layer(inputs, mask=mask)
            y.square().sum().backward()
            results.append([y, inputs.grad, *(p.grad.clone() for p in layer.parameters())])
            layer.zero_grad()
        for ours, theirs in zip(*results, strict=True):
            assert torch.isfinite(ours).all()
            assert_close(ours, theirs, rtol=0, atol=0)
        assert results[1][1][~mask].eq(0).all()


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_sequence_alone_equals_itself_padded_in_a_batch(projection):
    for sharing in SHARINGS:
        layer = layer_of(projection, sharing)
        x, mask = rows_of(3, 10), right_padding(10, 4, 1, to=10)
        together = layer(x, mask=mask)
        for b, length in enumerate((10, 4, 1)):
            alone = layer(x[b : b + 1, :length])
            assert_close(together[b : b + 1, :length], alone)
            assert together[b, length:].eq(0).all()


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_sample_of_nothing_but_padding_is_finite_in_outputs_and_gradients(projection):
    for plan in (None, *PLANS):
        if projection in NOT_A_MATRIX and plan is not None and plan.shorten == "keys":
            continue
        layer = layer_of(projection, "kv", plan=plan)
        x = rows_of(2, 6).requires_grad_()
        y = layer(x, mask=right_padding(6, 0, to=6))
        y.square().sum().backward()
        assert y[1].eq(0).all()
        assert torch.isfinite(y).all()
        assert all(torch.isfinite(p.grad).all() for p in (x, *layer.parameters()))
        empty_context = layer(
            x, context=rows_of(2, 5), context_mask=torch.zeros(2, 5, dtype=torch.bool)
        )
        assert torch.isfinite(empty_context).all()


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_every_length_is_taken_up_to_the_maximum_and_beyond_where_it_has_no_meaning(projection):
    layer = layer_of(projection, "kv")
    for length in range(1, 11):
        assert layer(rows_of(1, length)).shape == (1, length, 12)
    if projection in ("linear", "fixed"):
        with pytest.raises(ValueError, match=r"at most max_length=10 positions: got 11.*resize"):
            layer(rows_of(1, 11))
    else:
        assert_equals_reference(layer, rows_of(1, 17))


@pytest.mark.parametrize("projection", ["linear", "fixed"])
def test_short_inputs_keep_the_scale_of_the_shortened_rows(projection):
    torch.manual_seed(0)
    layer = LinformerAttention(
        dim=64, num_heads=4, max_length=1024, k=64, projection=projection, bias=False
    )
    x = torch.randn(1, 1024, 64)
    whole = layer.compress(x).key.std()
    for length in (16, 128, 512):
        assert_close(layer.compress(x[:, :length]).key.std(), whole, rtol=0.1, atol=0)


def test_dropout_of_rows_keeps_the_expectation_and_the_rate():
    torch.manual_seed(0)
    layer = layer_of("linear", "kv", dropout=0.3).train()
    x = rows_of(1, 8)
    expected = layer.eval()(x)
    layer.train()
    mean = torch.stack([layer(x) for _ in range(4000)]).mean(0)
    assert_close(mean, expected, rtol=0.1, atol=0.05)
    dropped = torch.stack([layer.compress(x).value.eq(0).all(-1) for _ in range(4000)])
    assert dropped.double().mean() == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("attend", ["fused", "absorbed"])
@pytest.mark.parametrize("kind", ["rows", "weights"])
def test_dropout_acts_in_training_only(kind, attend):
    layer = layer_of("linear", "kv", dropout=0.5, dropout_kind=kind, plan=Plan("input", attend))
    x = rows_of(1, 8)
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))


def test_every_order_agrees_that_an_empty_context_says_nothing():
    for projection in PROJECTIONS:
        for plan in PLANS:
            if projection in NOT_A_MATRIX and plan.shorten == "keys":
                continue
            layer = layer_of(projection, plan=plan)
            inputs = {
                "context": rows_of(2, 5, seed=2),
                "context_mask": torch.zeros(2, 5, dtype=torch.bool),
            }
            x = rows_of(2, 3)
            assert_close(layer(x, **inputs), layer.out_proj.bias.expand(2, 3, 12))


@pytest.mark.parametrize("projection", ["linear", "max", "mean", "dynamic", "full"])
def test_linear_maps_that_are_more_than_a_matrix_are_called(projection):
    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 0.5 * x[..., :1]

    layer = layer_of(projection)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        old = layer.get_submodule(name)
        new = Adapted(12, 12).double()
        new.load_state_dict(old.state_dict())
        setattr(layer, name, new)
    merged = layer_of(projection, plan=Plan("input", "fused"))
    merged.load_state_dict(layer.state_dict())
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            merged.get_submodule(name).weight[:, 0] += 0.5
    x, mask = rows_of(2, 7), right_padding(7, 4, to=7)
    assert_close(layer(x, mask=mask), merged(x, mask=mask))


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_float16_weights_have_finite_outputs_and_gradients(projection):
    layer = layer_of(projection, max_length=48, k=4).half()
    y = layer(rows_of(2, 40).half(), mask=right_padding(40, 5, to=40))
    y.float().square().sum().backward()
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_a_memory_made_once_serves_any_rows_of_queries():
    for plan in (None, *PLANS):
        layer = layer_of("linear", "headwise", plan=plan)
        x, context, mask = rows_of(2, 6), rows_of(2, 9, seed=2), right_padding(9, 3, to=9)
        whole = layer(x, context=context, context_mask=mask)
        kv = layer.compress(context, mask=mask)
        one_by_one = [layer.attend(x[:, i : i + 1], kv) for i in range(6)]
        assert_close(torch.cat(one_by_one, dim=1), whole)


def test_inference_by_row_blocks_equals_the_whole(monkeypatch):
    from linformer_kit.core.cpu import blocks

    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 4)
    for plan, batch, length in itertools.product((None, *PLANS), (1, 3), (1, 3, 9)):
        layer = layer_of("mean", "kv", plan=plan)
        x = rows_of(batch, length)
        mask = right_padding(*range(length - batch + 1, length + 1), to=length)
        with torch.no_grad():
            by_blocks = layer(x, mask=mask)
        assert_close(by_blocks, layer(x, mask=mask))


def test_a_batch_of_one_and_autocast():
    layer = layer_of("linear", "headwise").float()
    x = rows_of(1, 7).float()
    with torch.autocast("cpu", torch.bfloat16):
        for plan in (None, *PLANS):
            layer.plan = plan
            y = layer(x, mask=right_padding(5, to=7))
            y.float().sum().backward()
            with torch.autocast("cpu", enabled=False):
                expected = layer(x, mask=right_padding(5, to=7))
            assert_close(y.float(), expected, rtol=0.1, atol=0.1)


def test_bfloat16_weights():
    layer = layer_of("linear", "none")
    x, mask = rows_of(2, 7), right_padding(7, 4, to=7)
    expected = layer(x, mask=mask)
    assert_close(layer.bfloat16()(x.bfloat16(), mask=mask), expected.bfloat16(), rtol=0.1, atol=0.1)


WRONG_ARGUMENTS = [
    ({"num_heads": 5}, ValueError, r"dim must be divisible by num_heads: got dim=12, num_heads=5"),
    ({"k": 11}, ValueError, r"k must be at most max_length.*got k=11, max_length=10"),
    ({"k": 0}, ValueError, r"k must be at least 1: got 0"),
    ({"k": None}, ValueError, r"needs k.*got k=None"),
    ({"k": 2.5}, TypeError, r"k must be a whole number: got 2.5"),
    ({"max_length": None}, ValueError, r"needs max_length.*got None.*dynamic"),
    ({"projection": "linaer"}, ValueError, r"got 'linaer'. Did you mean 'linear'\?"),
    ({"sharing": "layer"}, ValueError, r"sharing must be one of .*got 'layer'"),
    ({"num_kv_heads": 3}, ValueError, r"got num_heads=4, num_kv_heads=3"),
    ({"dropout": 1.0}, ValueError, r"dropout must be at least 0 and below 1: got 1.0"),
    ({"dropout_kind": "row"}, ValueError, r"got 'row'. Did you mean 'rows'\?"),
    ({"projection": "max", "plan": Plan("keys", "fused")}, ValueError, r"max pooling is defined"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused_with_the_rule_and_what_was_received(options, error, message):
    with pytest.raises(error, match=message):
        layer_of(**options)


WRONG_CALLS = [
    ({"x": rows_of(1, 7, dim=11)}, ValueError, r"\(batch, length, 12\): got \(1, 7, 11\)"),
    ({"x": rows_of(1, 7)[0]}, ValueError, r"got \(7, 12\)"),
    ({"x": rows_of(1, 0)}, ValueError, r"at least one position: got \(1, 0, 12\)"),
    ({"mask": torch.ones(1, 6, dtype=torch.bool)}, ValueError, r"\(1, 7\): got \(1, 6\)"),
    ({"mask": torch.ones(1, 7)}, TypeError, r"must be boolean.*got torch.float32"),
    ({"context_mask": torch.ones(1, 7, dtype=torch.bool)}, ValueError, r"needs a context"),
    ({"context": rows_of(2, 7)}, ValueError, r"batch size of x: got 2 and 1"),
    ({"context": rows_of(1, 12)}, ValueError, r"at most max_length=10 positions: got 12"),
]


@pytest.mark.parametrize(("inputs", "error", "message"), WRONG_CALLS)
def test_wrong_inputs_are_refused_with_the_rule_and_what_was_received(inputs, error, message):
    for call in (layer_of(), layer_of().weights):
        with pytest.raises(error, match=message):
            call(**{"x": rows_of(1, 7)} | inputs)


def test_a_plan_set_later_is_checked_too():
    layer = layer_of("max")
    layer.plan = Plan("keys", "fused")
    with pytest.raises(ValueError, match=r"max pooling is defined"):
        layer(rows_of(1, 7))


def test_a_projection_with_too_few_rows_is_refused():
    layer = layer_of(sharing="layerwise", external_projection=True)
    with pytest.raises(ValueError, match=r"at least the k=3 rows.*got 2"):
        layer(rows_of(1, 7), projection=layer_of(sharing="layerwise", k=2).projection)


def test_a_layer_without_its_projection_says_how_to_pass_one():
    layer = layer_of(sharing="layerwise", external_projection=True)
    with pytest.raises(ValueError, match=r"pass projection="):
        layer(rows_of(1, 7))


def test_resized_layer_takes_the_new_length():
    layer = resize_max_length(layer_of("linear", "none"), 16)
    assert_equals_reference(layer, rows_of(1, 16))


@pytest.mark.parametrize("grad", [False, True])
def test_the_absorbed_order_works_under_autocast_and_for_no_samples(grad):
    layer = LinformerAttention(
        dim=16, num_heads=2, max_length=12, k=2, sharing="kv", plan=Plan("input", "absorbed")
    )
    x = torch.randn(2, 12, 16)
    with torch.set_grad_enabled(grad):
        expected = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert_close(layer(x).float(), expected, rtol=0.1, atol=0.1)
        assert layer(x[:0]).shape == (0, 12, 16)
