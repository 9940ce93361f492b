"""LinearMultiHeadAttention: the core's mathematics, the stock layer's manners."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from keras import ops

import linformer_kit
from linformer_kit.keras import LinearMultiHeadAttention

from .arrays import array, close, copy_attention, draw_biases, gradient, numpy

B, S, C, H, D, K = 2, 12, 8, 2, 16, 5


def built(length: int = S, channels: int = C, key_dim: int = D, **options) -> object:
    options = {"projection_dim": K} | options
    layer = LinearMultiHeadAttention(H, key_dim, **options)
    layer.build((None, length, channels), (None, length, channels))
    draw_biases(layer)
    return layer


def right_padding(*lengths: int, total: int = S) -> np.ndarray:
    return np.arange(total) < np.array(lengths)[:, None]


@pytest.mark.parametrize(("projection_dim", "parameters"), [(32, 1_179_904), (64, 1_307_904)])
def test_the_summary_counts_the_parameters_of_two_matrices(projection_dim, parameters):
    x = keras.Input((2000, 256))
    model = keras.Model(x, LinearMultiHeadAttention(8, 128, projection_dim=projection_dim)(x, x))
    lines: list[str] = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    assert model.count_params() == parameters
    assert f"{parameters:,}" in "".join(lines)


@pytest.mark.parametrize("share_kv", [False, True])
@pytest.mark.parametrize(("channels", "key_dim"), [(8, 16), (32, 2)], ids=["E first", "W first"])
@pytest.mark.parametrize("length", [S, 7])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_core_with_the_same_weights(share_kv, channels, key_dim, length, masked):
    layer = built(channels=channels, key_dim=key_dim, share_kv=share_kv)
    core = linformer_kit.LinformerAttention(
        dim=channels,
        num_heads=H,
        head_dim=key_dim,
        max_length=S,
        k=K,
        sharing="kv" if share_kv else "headwise",
    )
    copy_attention(layer, core)
    query, value = array(B, 9, channels), array(B, length, channels, seed=1)
    mask = right_padding(length, 4, total=length) if masked else None
    expected = core(
        torch.tensor(query),
        context=torch.tensor(value),
        context_mask=None if mask is None else torch.tensor(mask),
    )
    close(layer(query, value, value_mask=mask), expected.detach())


def test_gradients_equal_the_core_s():
    layer = built()
    core = linformer_kit.LinformerAttention(
        dim=C, num_heads=H, head_dim=D, max_length=S, k=K, sharing="headwise"
    )
    copy_attention(layer, core)
    x, mask = array(B, S, C), right_padding(S, 7)
    upstream = array(B, S, C, seed=2) * mask[..., None]
    ours = gradient(lambda x: ops.sum(ops.multiply(layer(x, x, value_mask=mask), upstream)), x)
    theirs = torch.tensor(x, requires_grad=True)
    (core(theirs, mask=torch.tensor(mask)) * torch.tensor(upstream)).sum().backward()
    close(ours, theirs.grad, 1e-4)


STOCK = {
    "plain": {},
    "masks": {"value_mask": right_padding(S, 5), "query_mask": right_padding(S, 8)},
    "causal": {"use_causal_mask": True},
    "attention_mask": {"attention_mask": np.tri(S, dtype=bool)[None].repeat(B, 0)},
    "scores": {"return_attention_scores": True},
}


@pytest.mark.parametrize("call", STOCK.values(), ids=STOCK)
@pytest.mark.parametrize(
    "options", [{}, {"use_bias": False, "output_shape": 6}, {"sliding_window": 3}]
)
def test_without_projection_dim_it_is_the_stock_layer(call, options):
    ours = LinearMultiHeadAttention(H, D, **options)
    stock = keras.layers.MultiHeadAttention(H, D, **options)
    x, value = array(B, S, C), array(B, S, C, seed=1)
    ours(x, value)
    stock(x, value)
    assert [w.shape for w in ours.weights] == [w.shape for w in stock.weights]
    ours.set_weights(stock.get_weights())
    result, expected = ours(x, value, **call), stock(x, value, **call)
    for one, other in zip(
        result if isinstance(result, tuple) else (result,),
        expected if isinstance(expected, tuple) else (expected,),
        strict=True,
    ):
        np.testing.assert_array_equal(numpy(one), numpy(other))


@pytest.mark.parametrize(
    ("options", "dropout"),
    [
        ({}, 0.0),  # the fused kernel
        ({}, 0.5),  # and the other way through the stock layer
        ({"value_dim": 3}, 0.5),
        ({"output_shape": 6}, 0.0),
        ({"use_gate": True}, 0.0),
        ({"use_bias": False}, 0.0),
    ],
)
def test_with_identity_matrices_it_equals_the_stock_layer(options, dropout):
    ours = LinearMultiHeadAttention(H, D, projection_dim=S, dropout=dropout, **options)
    stock = keras.layers.MultiHeadAttention(H, D, dropout=dropout, **options)
    query, value, key = array(B, 9, C), array(B, S, 4, seed=1), array(B, S, 6, seed=2)
    ours(query, value, key)
    stock(query, value, key)
    for name in ("query", "key", "value", "output", *(["gate"] if "use_gate" in options else [])):
        draw_biases(getattr(stock, f"_{name}_dense"))
        getattr(ours, f"_{name}_dense").set_weights(getattr(stock, f"_{name}_dense").get_weights())
    ours.key_projection.assign(np.eye(S, dtype="float32"))
    ours.value_projection.assign(np.eye(S, dtype="float32"))
    close(ours(query, value, key), stock(query, value, key))
    for one, other in zip(
        ours(query, value, key, return_attention_scores=True),
        stock(query, value, key, return_attention_scores=True),
        strict=True,
    ):
        close(one, other)


masks = arrays(bool, (B, S))


@settings(max_examples=12, deadline=None)
@given(mask=masks, share_kv=st.booleans(), seed=st.integers(0, 99))
def test_what_stands_in_the_padding_never_matters(mask, share_kv, seed):
    layer = LAYERS.setdefault(share_kv, built(share_kv=share_kv))
    query, value = array(B, 3, C), array(B, S, C, seed=seed)
    other = np.where(mask[..., None], value, 1e4 * array(B, S, C, seed=seed + 1))
    broken = np.where(mask[..., None], value, np.float32("nan"))
    expected = layer(query, value, value_mask=mask)
    assert np.isfinite(numpy(expected)).all()
    for changed in (other, broken):
        np.testing.assert_array_equal(
            numpy(layer(query, changed, value_mask=mask)), numpy(expected)
        )
    grad = gradient(lambda v: ops.sum(layer(query, v, value_mask=mask) ** 2), broken)
    assert np.isfinite(grad).all()
    assert not grad[~mask].any()


LAYERS: dict[bool, object] = {}


@settings(max_examples=6, deadline=None)
@given(value_mask=masks, key_mask=masks, attention_mask=masks)
def test_masks_of_keys_and_values_hold_together(value_mask, key_mask, attention_mask):
    layer = LAYERS.setdefault(False, built())
    x = array(B, S, C)
    together = layer(x, x, value_mask=value_mask & key_mask & attention_mask)
    apart = layer(
        x, x, value_mask=value_mask, key_mask=key_mask, attention_mask=attention_mask[:, None]
    )
    np.testing.assert_array_equal(numpy(apart), numpy(together))


def test_a_padded_input_equals_the_input_alone():
    layer = built()
    x = array(B, S, C)
    padded = layer(x, x, value_mask=right_padding(S, 7))
    close(padded[1:, :7], layer(x[1:, :7], x[1:, :7]))


def test_a_mask_that_keras_carries_along_is_used_and_carried_on():
    ids = np.array([[3, 1, 4, 0, 0], [1, 5, 9, 2, 6]])
    embedding = keras.layers.Embedding(10, C, mask_zero=True)
    layer = built(length=5)
    x = embedding(ids)
    y = layer(x, x)
    np.testing.assert_array_equal(numpy(y._keras_mask), ids != 0)
    close(y[0, :3], layer(x[:1, :3], x[:1, :3])[0])
    inputs = keras.Input((5,), dtype="int32")
    embedded = embedding(inputs)
    close(keras.Model(inputs, layer(embedded, embedded))(ids), y)


def test_shorter_inputs_keep_their_scale_unless_told_not_to():
    keeping, not_keeping = built(length=400), built(length=400, keep_scale=False)
    not_keeping.set_weights(keeping.get_weights())
    value = np.ones((1, 40, C), "float32") * array(1, 1, C)

    def size(layer) -> float:
        return float(np.abs(numpy(layer._shortened(value, value, None)[0])).mean())

    assert size(keeping) / size(not_keeping) == pytest.approx(10**0.5, rel=0.2)


def test_several_attention_axes_are_one_sequence():
    layer = LinearMultiHeadAttention(H, D, projection_dim=K, attention_axes=(1, 2))
    flat = built(length=12)
    x, mask = array(B, 3, 4, C), right_padding(12, 7).reshape(B, 3, 4)
    layer(x, x)
    pairs = zip(layer.get_weights(), flat.weights, strict=True)
    flat.set_weights([values.reshape(variable.shape) for values, variable in pairs])
    draw_biases(layer)
    draw_biases(flat)
    rows = x.reshape(B, 12, C)
    close(numpy(layer(x, x)).reshape(rows.shape), flat(rows, rows))
    masked = layer(x, x, value_mask=mask)
    close(numpy(masked).reshape(rows.shape), flat(rows, rows, value_mask=mask.reshape(B, 12)))
    _, scores = layer(x, x, return_attention_scores=True)
    assert tuple(scores.shape) == (B, H, 3, 4, K, 1)
    assert layer(x[:, :2], x[:, :2, :3]).shape == (B, 2, 4, C)
    with pytest.raises(ValueError, match="at most 3 x 4 positions in `value`: got 3 x 5"):
        layer(x, array(B, 3, 5, C))


@pytest.mark.parametrize("axis", [1, 2, -2])
def test_axes_that_are_not_attended_over_are_a_batch(axis):
    layer = LinearMultiHeadAttention(H, D, projection_dim=2, attention_axes=axis)
    x = array(B, 3, 4, C)
    layer(x, x)
    draw_biases(layer)
    mask = array(B, 3, 4, seed=5) > 0
    y, scores = layer(x, x, value_mask=mask, return_attention_scores=True)
    spec, scores_spec = layer.compute_output_spec(
        *(keras.KerasTensor(x.shape),) * 2, return_attention_scores=True
    )
    assert (tuple(y.shape), tuple(scores.shape)) == (spec.shape, scores_spec.shape)
    other = 2 if axis == 1 else 1
    for i in range(x.shape[other]):
        part = np.take(x, [i], other)
        alone = layer(part, part, value_mask=np.take(mask, [i], other))
        close(alone, np.take(numpy(y), [i], other))


def test_scores_are_weights_of_the_shortened_rows():
    layer = built()
    x = array(B, S, C)
    y, scores = layer(x, x, return_attention_scores=True)
    assert tuple(scores.shape) == (B, H, S, K)
    close(ops.sum(scores, -1), np.ones((B, H, S)))
    close(y, layer(x, x))
    symbolic = keras.Input((S, C))
    _, spec = layer(symbolic, symbolic, return_attention_scores=True)
    assert spec.shape == (None, H, S, K)


def test_values_of_another_size_than_keys():
    layer, dropping = built(value_dim=3), built(value_dim=3, dropout=0.5)  # two ways inside
    dropping.set_weights(layer.get_weights())
    x = array(B, S, C)
    close(layer(x, x), dropping(x, x))


def test_dropout_is_for_training_only():
    layer = built(dropout=0.5, seed=1)
    x = array(B, S, C)
    close(layer(x, x), layer(x, x, training=False))
    assert np.abs(numpy(layer(x, x, training=True)) - numpy(layer(x, x))).max() > 1e-3


def test_regularisers_and_constraints_of_kernels_hold_for_the_projections():
    layer = built(kernel_regularizer=keras.regularizers.L2(0.1), kernel_constraint="non_neg")
    assert len(layer.losses) == 6  # W_q, W_k, W_v, W_o, E, F
    assert isinstance(layer.key_projection.constraint, keras.constraints.NonNeg)


def test_a_regulariser_of_activity_sees_the_keys_of_all_positions():
    layer = built(activity_regularizer=keras.regularizers.L1(1.0))
    stock = keras.layers.MultiHeadAttention(H, D, activity_regularizer=keras.regularizers.L1(1.0))
    x = array(B, S, C)
    stock(x, x)
    layer.key_dense.set_weights(stock.key_dense.get_weights())
    layer(x, x)
    close(layer.key_dense.losses[0], stock.key_dense.losses[0])
    plain = built()
    plain.set_weights(layer.get_weights())
    close(layer(x, x), plain(x, x))


def test_the_projections_begin_with_the_core_s_variance_or_as_told():
    layer = built(length=400)
    assert np.std(numpy(layer.key_projection)) == pytest.approx(400**-0.5, rel=0.1)
    assert np.abs(numpy(layer.key_projection) - numpy(layer.value_projection)).max() > 0.01
    assert not numpy(built(projection_initializer="zeros").key_projection).any()


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float64"])
def test_other_precisions(policy):
    if policy == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has no float64 unless it is told to at its start")
    layer, precise = built(dtype=policy), built()
    precise.set_weights(layer.get_weights())
    x, mask = array(B, S, C), right_padding(S, 1)
    y = layer(x, x, value_mask=mask)
    assert keras.backend.standardize_dtype(y.dtype) == policy.removeprefix("mixed_")
    assert keras.backend.standardize_dtype(layer.key_projection.dtype) == (
        "float64" if policy == "float64" else "float32"
    )
    close(y, precise(x, x, value_mask=mask), 1e-5 if policy == "float64" else 0.1)


def test_a_length_unknown_when_built_needs_max_length():
    x = keras.Input((None, C))
    model = keras.Model(x, LinearMultiHeadAttention(H, D, projection_dim=K, max_length=S)(x, x))
    for length in (1, 6, S):
        assert model(array(B, length, C)).shape == (B, length, C)
        assert model.predict(array(B, length, C), verbose=0).shape == (B, length, C)


x_of_12 = array(B, S, C)
REFUSED = {
    "causal": (lambda: built()(x_of_12, x_of_12, use_causal_mask=True), "use_causal_mask=True has"),
    "per query": (
        lambda: built()(x_of_12, x_of_12, attention_mask=np.ones((B, S, S), bool)),
        r"the same for all queries.*got shape \(2, 12, 12\)",
    ),
    "too long": (
        lambda: built()(x_of_12, array(B, 13, C)),
        "built for at most 12 positions in `value`: got 13",
    ),
    "unknown length": (
        lambda: LinearMultiHeadAttention(H, D, projection_dim=K)(*(keras.Input((None, C)),) * 2),
        "must be known when the layer is built.*max_length=",
    ),
    "nothing to shorten": (
        lambda: built(projection_dim=13),
        "projection_dim must be at most.*got projection_dim=13 for 12 positions",
    ),
    "no number": (lambda: built(projection_dim=0), "projection_dim must be at least 1: got 0"),
    "window": (lambda: built(sliding_window=3), "sliding_window hides other positions"),
    "lengths": (lambda: built(max_length=(3, 4)), r"each of the 1 attention axes: got \(3, 4\)"),
    "max_length": (lambda: built(max_length=0), "max_length must be at least 1: got 0"),
}


@pytest.mark.parametrize(("attempt", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_meaning_is_refused_with_the_reason(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()


def test_an_unknown_argument_is_refused():
    with pytest.raises((TypeError, ValueError), match="projecton_dim"):
        LinearMultiHeadAttention(H, D, projecton_dim=K)
