"""The Keras encoder layer: the core's layer, with masks that hold."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import torch

from linformer_kit.core.attention import LinformerAttention
from linformer_kit.core.encoder import EncoderLayer
from linformer_kit.core.feedforward import FeedForward
from linformer_kit.keras import LinformerEncoder

from .arrays import array, close, copy_attention, copy_linear, draw_biases, numpy

B, S, C, H, K = 2, 12, 16, 2, 5
MASK = np.arange(S) < np.array([[S], [7]])


def built(**options) -> LinformerEncoder:
    layer = LinformerEncoder(32, H, **{"projection_dim": K} | options)
    layer(array(B, S, C))
    draw_biases(layer)
    return layer


@pytest.mark.parametrize("normalize_first", [False, True])
@pytest.mark.parametrize("share_kv", [False, True])
@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
def test_equals_the_core_s_layer_with_the_same_weights(normalize_first, share_kv, mask):
    layer = built(normalize_first=normalize_first, share_kv=share_kv, activation="relu")
    sharing = "kv" if share_kv else "headwise"
    core = EncoderLayer(
        LinformerAttention(dim=C, num_heads=H, max_length=S, k=K, sharing=sharing),
        FeedForward(dim=C, ff_dim=32, activation="relu"),
        norm="pre" if normalize_first else "post",
    )
    copy_attention(layer.attention, core.attention)
    copy_linear(layer.hidden, core.feed_forward.w_1)
    copy_linear(layer.output_dense, core.feed_forward.w_2)
    x = array(B, S, C, seed=3)
    torch_mask = None if mask is None else torch.tensor(mask)
    expected = core(torch.tensor(x), torch_mask, None).detach().numpy()
    real = np.ones((B, S), bool) if mask is None else mask
    close(numpy(layer(x, padding_mask=mask))[real], expected[real], 1e-4)


def test_padding_content_never_changes_the_output_of_two_layers():
    first, second = built(), built(normalize_first=True)
    x = array(B, S, C)
    changed = np.where(MASK[..., None], x, np.float32("nan"))

    def both(x) -> np.ndarray:
        return numpy(second(first(x, padding_mask=MASK), padding_mask=MASK))[MASK]

    np.testing.assert_array_equal(both(changed), both(x))


def test_a_mask_that_keras_carries_along_joins_the_one_given():
    ids = np.array([[3, 1, 4, 0, 0], [1, 5, 9, 2, 6]])
    embedding = keras.layers.Embedding(10, C, mask_zero=True)
    layer = LinformerEncoder(32, H, projection_dim=2)
    given = np.array([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]])
    y = layer(embedding(ids), padding_mask=given)
    np.testing.assert_array_equal(numpy(y._keras_mask), ids != 0)
    bare = np.array(numpy(embedding(ids)))
    close(y, layer(bare, padding_mask=(given * ids) != 0))


def test_without_projection_dim_it_is_a_transformer_layer():
    layer = LinformerEncoder(32, H)
    x = array(B, S, C)
    y, scores = layer(x, return_attention_scores=True)
    assert tuple(scores.shape) == (B, H, S, S)
    causal = np.tri(S, dtype=bool)[None].repeat(B, 0)
    first = layer(x, attention_mask=causal)
    close(first[:, :1], layer(x[:, :1]))
    close(layer(x), y)


def test_scores_in_a_functional_model():
    x = keras.Input((S, C))
    y, scores = LinformerEncoder(32, H, K)(x, return_attention_scores=True)
    assert (y.shape, scores.shape) == ((None, S, C), (None, H, S, K))
    model = keras.Model(x, [y, scores])
    close(np.sum(numpy(model(array(B, S, C))[1]), -1), np.ones((B, H, S)))


def test_mistakes_say_what_to_change():
    with pytest.raises(ValueError, match=r"divisible by num_heads: got 16 and num_heads=3"):
        LinformerEncoder(32, 3)(array(B, S, C))
    with pytest.raises(ValueError, match="the same for all queries"):
        built()(array(B, S, C), attention_mask=np.ones((B, S, S), bool))
    with pytest.raises(ValueError, match="intermediate_dim must be at least 1: got 0"):
        LinformerEncoder(0, 3)
