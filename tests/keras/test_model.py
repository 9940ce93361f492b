"""The layers inside models: training, files, compilation, and from one backend to another."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from linformer_kit.keras import LinearMultiHeadAttention, LinformerEncoder

from .arrays import array, close, numpy

LENGTH, VOCABULARY = 16, 12

# torch.compile takes many seconds, XLA few.
slow_on_torch = (
    pytest.mark.slow if keras.backend.backend() == "torch" else pytest.mark.usefixtures()
)


def classifier(*, encoder: bool, jit_compile: bool = False) -> keras.Model:
    ids = keras.Input((LENGTH,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, 16, mask_zero=True)(ids)
    if encoder:
        x = LinformerEncoder(32, 2, projection_dim=4, share_kv=True, dropout=0.1)(x)
    else:
        x = keras.layers.Add()([x, LinearMultiHeadAttention(2, 8, projection_dim=4)(x, x)])
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(ids, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=jit_compile)
    return model


def padded_examples() -> tuple[np.ndarray, np.ndarray]:
    """Sequences with padding behind them; the target is the share of one token."""
    draw = np.random.default_rng(0)
    ids = draw.integers(1, VOCABULARY, (64, LENGTH)).astype("int32")
    lengths = draw.integers(4, LENGTH + 1, 64)
    ids[np.arange(LENGTH) >= lengths[:, None]] = 0
    return ids, ((ids == 3).sum(1) / lengths).astype("float32")[:, None]


@pytest.mark.parametrize("encoder", [False, True], ids=["attention", "encoder"])
def test_training_reduces_the_loss_and_files_keep_the_model(encoder, tmp_path):
    keras.utils.set_random_seed(0)
    model = classifier(encoder=encoder)
    ids, target = padded_examples()
    loss = model.fit(ids, target, epochs=10, batch_size=16, verbose=0).history["loss"]
    assert loss[-1] < 0.5 * loss[0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(ids, verbose=0), model.predict(ids, verbose=0))
    model.save_weights(tmp_path / "model.weights.h5")
    again = classifier(encoder=encoder)
    again.load_weights(tmp_path / "model.weights.h5")
    close(again.predict(ids, verbose=0), model.predict(ids, verbose=0))


@pytest.mark.parametrize("encoder", [False, True], ids=["attention", "encoder"])
@slow_on_torch
def test_compiled_models_predict_and_train_the_same(encoder):
    ids, target = padded_examples()
    model, compiled = (classifier(encoder=encoder, jit_compile=jit) for jit in (False, True))
    compiled.set_weights(model.get_weights())
    close(compiled.predict(ids, verbose=0), model.predict(ids, verbose=0))
    loss = compiled.fit(ids, target, epochs=4, batch_size=16, verbose=0).history["loss"]
    assert loss[-1] < loss[0]


def test_configs_make_the_same_layer_again():
    options = {
        "projection_dim": 3,
        "share_kv": True,
        "max_length": 9,
        "keep_scale": False,
        "projection_initializer": "orthogonal",
        "value_dim": 5,
        "dropout": 0.1,
        "kernel_regularizer": "l2",
        "seed": 7,
        "attention_axes": (1,),
    }
    layer = LinearMultiHeadAttention(2, 4, **options)
    again = LinearMultiHeadAttention.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    again.build((None, 9, 8), (None, 9, 8))
    assert again.key_projection.shape == (3, 9)
    assert again.value_projection is None
    encoder = LinformerEncoder(32, 2, 4, max_length=9, normalize_first=True, activation="gelu")
    assert LinformerEncoder.from_config(encoder.get_config()).get_config() == encoder.get_config()


SAVE = """
import sys, keras, numpy
from linformer_kit.keras import LinformerEncoder
x = keras.Input((None, 8))
model = keras.Model(x, LinformerEncoder(16, 2, projection_dim=4, max_length=12)(x))
model.save(sys.argv[1])
numpy.save(sys.argv[2], model.predict(numpy.load(sys.argv[3]), verbose=0))
"""


def test_a_file_written_on_torch_gives_the_same_outputs_here(tmp_path):
    model, output, given = (tmp_path / name for name in ("model.keras", "y.npy", "x.npy"))
    x = array(2, 10, 8)
    np.save(given, x)
    subprocess.run(
        [sys.executable, "-c", SAVE, model, output, given],
        env=os.environ | {"KERAS_BACKEND": "torch"},
        check=True,
    )
    close(numpy(keras.models.load_model(model)(x)), np.load(output))
