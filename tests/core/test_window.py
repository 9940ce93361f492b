"""The exact window and the global tokens of the encoder's attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from linformer_kit import LinformerAttention, LinformerEncoder, Plan, resize_max_length
from linformer_kit.core import chunks, reference_window
from linformer_kit.core import window as windows
from linformer_kit.core.cpu import chunk_attention
from linformer_kit.core.projection_kinds import NOT_A_MATRIX, PROJECTIONS, SEGMENT_KINDS, SHARINGS

from .oracle import compress_of, weights_of

KINDS = tuple(kind for kind in PROJECTIONS if kind != "full")
WINDOWS = (0, 1, 3, 9)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


def built(kind="linear", **options) -> LinformerAttention:
    torch.manual_seed(0)
    sizes = {"dim": 8, "num_heads": 4, "max_length": 8, "k": 3, "window": 2}
    layer = LinformerAttention(projection=kind, **sizes | options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def rows_of(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, 8, dtype=torch.double, generator=generator)


def holes(length: int) -> torch.Tensor:
    """Masks (3, N): of a whole sample, of one with padding inside, and of one padded at the start,
    inside the first chunk of 3 and the first 2 positions, and at the end.
    """
    position = torch.arange(length)
    inside = (position % 4 != 2) & (position != 1)
    ends = (position > 0) & ((position < length - 2) | (position == 1))
    return torch.stack((position >= 0, inside, ends))


def expected(layer, x, mask=None, projection=None):
    key = value = segment = None
    if layer.k:
        projection = layer.projection if projection is None else projection
        key, value = (compress_of(layer, side, projection) for side in (0, 1))
        segment = projection.width if layer.kind in SEGMENT_KINDS else None
    return reference_window.window_attention(
        x,
        weights_of(layer),
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        compress_key=key,
        compress_value=value,
        compress_inputs=layer.kind in NOT_A_MATRIX,
        window=layer.window,
        global_tokens=layer.global_tokens,
        row_bias=layer.row_bias,
        pool_queries=projection.weight[0] if layer.k and layer.kind == "pool" else None,
        segment=segment,
        mask=mask,
    )


def gradients(y, leaves):
    upstream = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(3))
    return torch.autograd.grad(y, leaves, upstream, allow_unused=True, materialize_grads=True)


def assert_equals_reference(layer, x, mask=None, **options) -> None:
    """Outputs and gradients, on the paths for a CPU, on the plain one, and as a short input."""
    leaves = [x.requires_grad_(), *layer.parameters()]
    oracle = expected(layer, x, mask, **options)
    oracle_gradients = gradients(oracle, leaves)
    for path in ("one block", "blocks", "by input", "plain", "short"):
        with pytest.MonkeyPatch.context() as patch:
            if path != "short":
                patch.setattr(windows, "is_short", lambda *_: False)
            if path == "by input":  # tiny inputs would be compressed after W_k
                patch.setattr(layer, "plan", Plan("input", "fused"))
            if path == "blocks":
                patch.setattr(chunk_attention, "rows_in_block", lambda width: 3)
            if path == "plain":
                patch.setattr(chunks, "use_cpu_chunks", lambda *_: False)
            with torch.no_grad():
                assert_close(layer(x, mask=mask, **options), oracle)
            answer = layer(x, mask=mask, **options)
            assert_close(answer, oracle)
            assert_close(gradients(answer, leaves), oracle_gradients)


@pytest.mark.parametrize("sharing", SHARINGS)
@EVERY_KIND
def test_equals_the_reference_in_outputs_and_gradients(kind, sharing):
    """Every pair of projection, sharing and window, each with and without mask and globals."""
    number = KINDS.index(kind) + SHARINGS.index(sharing)
    window = WINDOWS[number % 4]
    cases = [(mask, seen) for mask in (False, True) for seen in (0, 2) if window or seen]
    for i, (masked, seen) in enumerate(cases):
        length = (1, 5, 8)[(number + i) % 3]
        layer = built(kind, sharing=sharing, window=window, global_tokens=seen)
        mask = holes(length)[:2] if masked else None
        assert_equals_reference(layer, rows_of(2 if masked else 1, length), mask)


@EVERY_KIND
def test_heads_that_share_keys_equal_the_reference(kind):
    layer = built(kind, num_kv_heads=2, window=3, global_tokens=1)
    assert_equals_reference(layer, rows_of(3, 8), holes(8))


@pytest.mark.parametrize("kind", ["linear", "mean"])
def test_the_path_for_a_cpu_is_taken_and_has_derivatives_of_higher_order(kind, monkeypatch):
    layer = built(kind, window=2, global_tokens=1, dropout=0.4, plan=Plan("input", "fused"))
    x, calls = rows_of(2, 7), []
    taken = chunks.attend_chunks_on_cpu
    monkeypatch.setattr(
        chunks, "attend_chunks_on_cpu", lambda *given: calls.append(given) or taken(*given)
    )
    monkeypatch.setattr(chunk_attention, "rows_in_block", lambda width: 4)
    monkeypatch.setattr(windows, "is_short", lambda *_: False)

    def seeded(x, w_k, b_o):
        torch.manual_seed(1)
        changed = {"k_proj.weight": w_k, "out_proj.bias": b_o}
        return torch.func.functional_call(layer, changed, (x,), {"mask": holes(7)[:2]})

    leaves = [
        each.detach().clone().requires_grad_()
        for each in (x, layer.k_proj.weight, layer.out_proj.bias)
    ]
    assert torch.autograd.gradcheck(seeded, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(seeded, leaves, fast_mode=True)
    assert calls


@pytest.mark.parametrize("seen", [0, 2])
def test_the_strides_of_a_mask_do_not_matter(seen):
    """As of tokens with the sequence first: `(tokens != padding).T`."""
    layer = built("mean", window=2, global_tokens=seen, max_length=64, plan=Plan("input", "fused"))
    x, mask = rows_of(3, 40).requires_grad_(), torch.arange(40) < torch.tensor([[40], [23], [7]])
    other = mask.t().contiguous().t()
    with torch.no_grad():
        assert_close(layer(x, mask=other), layer(x, mask=mask))
    found = [gradients(layer(x, mask=each), [x]) for each in (mask, other)]
    assert_close(found[1], found[0])


@pytest.mark.parametrize("kind", ["mean", "pool"])
@pytest.mark.parametrize("length", [6, 40])
def test_a_batch_of_no_samples_with_global_positions(kind, length):
    layer = built(kind, global_tokens=2, max_length=64).eval()
    x = rows_of(0, length)
    with torch.no_grad():
        assert layer(x).shape == x.shape
    assert layer(x.requires_grad_()).shape == x.shape


def test_a_call_with_fake_tensors_leaves_nothing_behind():
    layer = built("mean", window=3, max_length=64).eval()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        layer(torch.empty(1, 7, 8, dtype=torch.double))
    with torch.no_grad():
        assert type(layer(rows_of(1, 7))) is torch.Tensor


def test_a_short_input_is_trained_after_it_was_read_in_inference_mode():
    layer, x = built("mean", window=4), rows_of(2, 9)
    layer.eval()
    with torch.inference_mode():
        expected = layer(x)
    y = layer.train()(x.requires_grad_())
    assert_close(y, expected)
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seen", [0, 1, 9])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_many_blocks_of_chunks_equal_the_reference(window, seen, masked):
    """Longer than five windows, in inference too; 9 global positions are more than a block."""
    for length in (26, 31):
        layer = built("mean", window=window, global_tokens=seen, max_length=32)
        mask = holes(length) if masked else None
        assert_equals_reference(layer, rows_of(3 if masked else 2, length), mask)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("window", [1, 3])
def test_every_length_around_a_multiple_of_the_window(window, length):
    for kind, seen in (("linear", 0), ("mean", 1)):
        layer = built(kind, window=window, global_tokens=seen)
        assert_equals_reference(layer, rows_of(3, length), holes(length))


@pytest.mark.parametrize("masked", [False, True])
@EVERY_KIND
def test_a_window_that_covers_the_input_is_full_attention(kind, masked):
    full = built("full", k=None, window=0)
    x, mask = rows_of(3, 8).requires_grad_(), holes(8) if masked else None
    for window, seen in ((4, 0), (8, 2), (1000, 0), (1, 8)):
        layer = built(kind, window=window, global_tokens=seen)
        layer.load_state_dict(full.state_dict(), strict=False)
        leaves = [x, *(getattr(layer, f"{name}_proj").weight for name in ("q", "k", "v", "out"))]
        theirs = [x, *(getattr(full, f"{name}_proj").weight for name in ("q", "k", "v", "out"))]
        answer, wanted = layer(x, mask=mask), full(x, mask=mask)
        assert_close(answer, wanted)
        assert_close(gradients(answer, leaves), gradients(wanted, theirs))
        shown = layer.weights(x, mask=mask)
        wanted = full.weights(x, mask=mask)
        assert_close(shown[..., -8:], wanted)
        assert shown[..., :-8].eq(0).all()


@EVERY_KIND
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("seen", [0, 1])
def test_in_inference_a_short_input_equals_the_reference(kind, seen, heads, monkeypatch):
    """Up to 4 positions are covered by the window, up to 10 are one call of the kernel."""
    called: list[int] = []
    one_call = windows.attend_densely
    monkeypatch.setattr(
        windows,
        "attend_densely",
        lambda query, *given, **sizes: (
            called.append(query.shape[1]) or one_call(query, *given, **sizes)
        ),
    )
    layer = built(kind, global_tokens=seen, num_kv_heads=heads, max_length=14).eval()
    for length in (1, 3, 4, 5, 7, 10, 11, 14):
        x, mask = rows_of(3, length), holes(length)
        with torch.no_grad():
            assert_close(layer(x), expected(layer, x))
            assert_close(layer(x, mask=mask), expected(layer, x, mask))
            assert_close(layer(x), expected(layer, x))  # what is cached does not depend on masks
    assert set(called) == {1, 3, 4, 5, 7, 10}


def test_in_inference_a_short_sample_without_real_positions_is_zero():
    layer, mask = built("mean", max_length=14).eval(), torch.zeros(1, 7, dtype=torch.bool)
    with torch.no_grad():
        assert layer(rows_of(1, 7), mask=mask).eq(0).all()


def test_a_covered_input_is_checked_as_others_are():
    layer = built(max_length=4, window=3).eval()
    outside = built(window=3, external_projection=True).eval()
    with torch.no_grad():
        with pytest.raises(ValueError, match="max_length"):
            layer(rows_of(1, 5))
        with pytest.raises(ValueError, match="pass projection="):
            outside(rows_of(1, 5))


def test_a_long_window_costs_no_more_than_the_input():
    """The chunks of a short input are not padded to the length of the window."""
    layer, x = built(window=10**5).eval(), rows_of(1, 5)
    with torch.no_grad():
        assert_close(layer(x), expected(layer, x))


@pytest.mark.parametrize("window", [1, 2, 3, 7, 8, 9])
def test_without_rows_it_is_banded_attention(window):
    layer, x, mask = built(k=0, window=window, max_length=None), rows_of(3, 8), holes(8)
    chunk = torch.arange(8) // window
    band = (chunk[:, None] - chunk).abs() <= 1
    heads = [
        each(x.masked_fill(~mask[..., None], 0.0)).unflatten(2, (-1, 2)).transpose(1, 2)
        for each in (layer.q_proj, layer.k_proj, layer.v_proj)
    ]
    query, key, value = heads
    scores = (query @ key.mT / math.sqrt(2)).masked_fill(~(band & mask[:, None])[:, None], -1e300)
    mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    assert_close(layer(x, mask=mask), layer.out_proj(mixed).masked_fill(~mask[..., None], 0.0))
    assert layer.projection is None
    assert layer.row_bias is None


def test_a_batch_of_no_samples():
    layer = built(global_tokens=1)
    x, mask = rows_of(0, 5), torch.ones(0, 5, dtype=torch.bool)
    for options in ({}, {"mask": mask}):
        assert layer(x, **options).shape == (0, 5, 8)
        assert layer.weights(x, **options).shape == (0, 4, 5, 8)


@pytest.mark.parametrize("training", [False, True])
@EVERY_KIND
def test_padding_content_never_changes_an_output_or_a_gradient(kind, training):
    mask = torch.cat((holes(8), torch.zeros(1, 8, dtype=torch.bool)))
    for seen in (0, 2):
        layer = built(kind, window=3, global_tokens=seen, dropout=0.2).train(training)
        results = []
        for content in (0.0, 1e300, math.nan, math.inf):
            x = rows_of(4, 8).masked_fill(~mask[..., None], content).requires_grad_()
            torch.manual_seed(5)
            y = layer(x, mask=mask)
            results.append([y, *gradients(y, [x, *layer.parameters()])])
        for result in results:
            assert all(each.isfinite().all() for each in result)
            assert_close(result, results[0], rtol=0, atol=0)
            assert result[0][~mask].eq(0).all()
            assert result[1][~mask].eq(0).all()
        weights = layer.weights(x, mask=mask)
        assert weights.isfinite().all()
        assert weights[3].eq(0).all()


@EVERY_KIND
def test_a_sequence_alone_equals_itself_padded_in_a_batch(kind):
    for window, seen in ((0, 1), (1, 0), (3, 2), (20, 0)):
        layer = built(kind, window=window, global_tokens=seen)
        x, lengths = rows_of(4, 8), (8, 5, 3, 1)
        mask = torch.arange(8) < torch.tensor(lengths)[:, None]
        together = layer(x, mask=mask)
        for b, length in enumerate(lengths):
            assert_close(together[b : b + 1, :length], layer(x[b : b + 1, :length]))


@pytest.mark.parametrize("masked", [False, True])
@EVERY_KIND
def test_weights_sum_to_one_see_no_hidden_key_and_give_the_output(kind, masked):
    length, window, seen = 8, 2, 1
    layer = built(kind, window=window, global_tokens=seen)
    x, mask = rows_of(3, length).requires_grad_(), holes(length)
    real = mask if masked else torch.ones_like(mask)
    output, weights = layer.trace(x, mask=mask if masked else None)
    rows = weights.shape[3] - length
    assert weights.shape == (3, 4, length, 3 + length)
    assert_close(weights.sum(-1), real[:, None].double().expand(3, 4, length))
    for i in range(length):
        exact = reference_window.exact_positions(i, length, window=window, global_tokens=seen)
        hidden = [j for j in range(length) if j not in exact]
        assert weights[:, :, i, [rows + j for j in hidden]].eq(0).all()
    assert weights[:, :, :seen, :rows].eq(0).all()
    assert weights[..., rows:].masked_select(~real[:, None, None]).eq(0).all()
    answer = layer(x, mask=mask if masked else None)
    assert_close(output, answer)
    leaves = [x, *layer.parameters()]
    *found, of_weights = gradients(output, [*leaves, weights])
    assert_close(found, list(gradients(answer, leaves)))
    assert of_weights.any()


def test_a_projection_that_is_passed_decides_the_length_of_segments():
    for kind in SEGMENT_KINDS:
        layer = built(kind, sharing="layerwise", external_projection=True)
        projection = built(kind, sharing="layerwise", max_length=14).projection
        assert_equals_reference(layer, rows_of(3, 8), holes(8), projection=projection)


@pytest.mark.parametrize("kind", ["linear", "mean"])
def test_a_branch_switched_off_is_a_layer_without_it(kind):
    x, mask = rows_of(3, 8), holes(8)
    for window in (2, 9):
        layer = built(kind, window=window, global_tokens=1)
        for branch, options in (("window", {"k": 0}), ("rows", {"window": 0})):
            alone = built(kind, **{"window": window, "global_tokens": 1} | options)
            alone.load_state_dict(layer.state_dict(), strict=False)
            layer.branch = branch
            assert_close(layer(x, mask=mask), expected(alone, x, mask))
            assert_close(layer.trace(x, mask=mask), alone.trace(x, mask=mask))


@pytest.mark.parametrize("dropout_kind", ["rows", "weights"])
def test_dropout_keeps_the_expectation_and_follows_the_seed(dropout_kind):
    layer = built(global_tokens=1, dropout=0.3, dropout_kind=dropout_kind)
    x, mask = rows_of(3, 8), holes(8)
    wanted = layer.eval()(x, mask=mask)
    layer.train()

    def seeded(run, seed=3):
        torch.manual_seed(seed)
        return run(x, mask=mask)

    assert torch.equal(seeded(layer), seeded(layer))
    assert not torch.equal(seeded(layer), seeded(layer, seed=4))
    if dropout_kind == "rows":
        assert_close(seeded(layer.trace).output, seeded(layer))
    with torch.no_grad():
        many, keep = x.repeat(1500, 1, 1), mask.repeat(1500, 1)
        mean = layer(many, mask=keep).unflatten(0, (1500, 3)).mean(0)
    assert_close(mean, wanted, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("dropout_kind", ["rows", "weights"])
def test_checkpointing_draws_the_same_dropout(dropout_kind):
    torch.manual_seed(0)
    options = {"window": 2, "global_tokens": 1, "dropout": 0.3, "dropout_kind": dropout_kind}
    encoder = LinformerEncoder(dim=8, depth=2, num_heads=2, max_length=8, k=3, **options).double()
    x, found = rows_of(3, 8).requires_grad_(), []
    for encoder.gradient_checkpointing in (False, True):
        torch.manual_seed(3)
        y = encoder(x, mask=holes(8))
        found.append([y, *gradients(y, [x, *encoder.parameters()])])
    assert_close(*found, rtol=0, atol=0)


@EVERY_KIND
def test_float32_is_near_float64_at_a_thousand_positions(kind):
    sizes = {"dim": 32, "num_heads": 4, "max_length": 1000, "k": 16, "window": 16}
    torch.manual_seed(0)
    layer = LinformerAttention(projection=kind, global_tokens=2, **sizes)
    x, mask = torch.randn(1, 1000, 32), torch.arange(1000)[None] < 990
    found, upstream = [], torch.randn(1, 1000, 32)
    for dtype in (torch.float64, torch.float32):
        layer.to(dtype)
        leaf = x.to(dtype).requires_grad_()
        y = layer(leaf, mask=mask)
        found.append([y, *torch.autograd.grad(y, [leaf, *layer.parameters()], upstream.to(dtype))])
    for wide, narrow in zip(*found, strict=True):
        assert_close(narrow.double(), wide, rtol=0, atol=2e-5 * max(1.0, wide.abs().max().item()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@EVERY_KIND
def test_half_precision_weights_are_finite_and_near(kind, dtype):
    layer = built(kind, global_tokens=1, max_length=48)
    mask = torch.cat((holes(40), torch.zeros(1, 40, dtype=torch.bool)))
    x = rows_of(4, 40)
    wanted = layer(x, mask=mask)
    layer.to(dtype)
    x = x.to(dtype).requires_grad_()
    y = layer(x, mask=mask)
    assert y.dtype == dtype
    assert_close(y.double(), wanted, rtol=0.1, atol=0.5)
    assert all(each.isfinite().all() for each in gradients(y, [x, *layer.parameters()]))
    with torch.no_grad():
        assert_close(layer(x, mask=mask).double(), wanted, rtol=0.1, atol=0.5)


@pytest.mark.parametrize("max_length", [5, 14])
@EVERY_KIND
def test_resized_layers_equal_the_reference(kind, max_length):
    layer = built(kind, global_tokens=1)
    if kind == "dynamic":
        layer = nn.ModuleDict({"layer": layer, "other": built("mean")})
    resized = resize_max_length(layer, max_length)
    layer = resized["layer"] if kind == "dynamic" else resized
    assert_equals_reference(layer, rows_of(3, max_length), holes(max_length))


@pytest.mark.parametrize("kind", ["linear", "conv", "mean", "dynamic"])
@pytest.mark.parametrize("sharing", ["layerwise", "kv"])
def test_layers_of_an_encoder_may_have_a_window_alone(kind, sharing):
    torch.manual_seed(0)
    encoder = LinformerEncoder(
        dim=8, depth=3, num_heads=2, max_length=8, k=[0, 3, 0], window=2, projection=kind,
        sharing=sharing,
    ).double()  # fmt: skip
    x, mask = rows_of(3, 8), holes(8)
    hidden, layers = encoder.trace(x, mask=mask).hidden_states, encoder.layers
    for layer, rows in zip(layers, hidden, strict=False):
        source = layer.attention_norm(rows)
        shared = encoder.projection if layer.attention.k else None
        attended = expected(layer.attention, source, mask, shared)
        assert_close(layer.attention(source, mask=mask, projection=encoder.projection), attended)
    assert_close(hidden[-1], encoder(x, mask=mask))
    with torch.no_grad():
        assert_close(encoder(x, mask=mask), hidden[-1])


@pytest.mark.parametrize(
    ("kind", "seen"),
    [("linear", 2), ("dynamic", 0), ("conv", 0), ("mean", 2), ("max", 0), ("pool", 2)],
)
def test_exports_with_a_dynamic_batch_and_length(kind, seen):
    torch.manual_seed(0)
    encoder = LinformerEncoder(
        dim=8, depth=1, num_heads=2, max_length=24, k=8, window=4, global_tokens=seen,
        projection=kind,
    ).eval()  # fmt: skip
    shapes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", min=5, max=24)}
    if kind in SEGMENT_KINDS:  # PyTorch cannot prove bounds on (number of chunks) * (of segments)
        shapes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        encoder,
        (torch.randn(2, 9, 8),),
        {"mask": torch.ones(2, 9, dtype=torch.bool)},
        dynamic_shapes={"x": shapes, "mask": shapes},
    ).module()
    for samples, positions in ((3, 12), (2, 5), (1, 7), (5, 8), (2, 24)):
        x = torch.randn(samples, positions, 8)
        mask = torch.arange(positions).expand(samples, -1) < positions - 1
        assert_close(program(x, mask=mask), encoder(x, mask=mask), rtol=1e-4, atol=1e-5)


WRONG_ARGUMENTS = [
    (
        {"projection": "full", "k": None},
        r"projection='full' attends to every position exactly.*got window=2\. Leave it 0",
    ),
    ({"projection": "full", "k": None, "window": 0, "global_tokens": 1}, r"got global_tokens=1"),
    ({"window": -1}, r"window must be at least 0: got -1"),
    ({"window": 2.0}, r"window must be a whole number: got 2.0"),
    ({"window": True}, r"window must be a whole number: got True"),
    ({"global_tokens": -1}, r"global_tokens must be at least 0: got -1"),
    ({"global_tokens": "2"}, r"global_tokens must be a whole number: got '2'"),
    ({"k": 0, "window": 0}, r"k must be at least 1: got 0\. .*window"),
    ({"k": 0, "window": 0, "global_tokens": 1}, r"k must be at least 1: got 0\. .*window"),
    ({"k": False}, r"k must be a whole number: got False"),
    ({"k": -1}, r"k must be at least 1: got -1"),
    ({"plan": Plan("input", "absorbed")}, r"plan\.attend='absorbed'.*Use attend='fused'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_ARGUMENTS, ids=str)
def test_wrong_arguments_are_refused_with_the_rule_and_what_was_received(options, message):
    sizes = {"dim": 8, "num_heads": 2, "max_length": 8, "k": 3, "window": 2} | options
    for build in (LinformerAttention, lambda **sizes: LinformerEncoder(depth=2, **sizes)):
        with pytest.raises((ValueError, TypeError), match=message):
            build(**sizes)


def test_k_must_be_a_whole_number():
    with pytest.raises(TypeError, match=r"k must be a whole number: got 0.0"):
        built(k=0.0)


def test_a_layer_without_rows_and_without_a_window_is_refused_in_an_encoder():
    with pytest.raises(ValueError, match=r"k must be at least 1: got 0.*window"):
        LinformerEncoder(dim=8, depth=2, num_heads=2, max_length=8, k=[0, 4])


def test_a_context_is_refused():
    layer, x = built(global_tokens=1), rows_of(1, 5)
    mask = torch.ones(1, 5, dtype=torch.bool)
    message = r"for self-attention.*window=2, global_tokens=1.*with both 0"
    for call in (layer, layer.weights, layer.trace):
        with pytest.raises(ValueError, match=message):
            call(x, context=x)
        with pytest.raises(ValueError, match="context_mask needs a context"):
            call(x, context_mask=mask)
    for call in (layer.compress, layer.compress_self):
        with pytest.raises(ValueError, match=message):
            call(x)
