"""Between Keras' tensors, numpy and the core's weights, on any backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import numpy as np
import torch
from keras import ops

if TYPE_CHECKING:
    import linformer_kit


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def numpy(x) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def close(x, y, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(numpy(x), numpy(y), rtol=tolerance, atol=tolerance)


def gradient(function, x: np.ndarray) -> np.ndarray:
    """d function(x) / d x of a function with one number as its value."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return np.asarray(jax.grad(function)(x))
    if backend == "tensorflow":
        import tensorflow as tf

        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x).numpy()
    x = torch.tensor(x, requires_grad=True)
    function(x).backward()
    return x.grad.numpy()


def copy_linear(dense, linear: torch.nn.Linear) -> None:
    """From an EinsumDense with its heads apart, or a Dense, to the core's linear map."""
    weight = torch.tensor(numpy(dense.kernel))
    rows = linear.in_features
    with torch.no_grad():
        linear.weight.copy_(weight.reshape(rows, -1).T)
        linear.bias.copy_(torch.tensor(numpy(dense.bias)).reshape(-1))


def copy_attention(layer, attention: linformer_kit.LinformerAttention) -> None:
    """The weights of a Keras layer for (B, S, C) into the core's attention."""
    copy_linear(layer.query_dense, attention.q_proj)
    copy_linear(layer.key_dense, attention.k_proj)
    copy_linear(layer.value_dense, attention.v_proj)
    copy_linear(layer.output_dense, attention.out_proj)
    matrices = [layer.key_projection] + ([] if layer.share_kv else [layer.value_projection])
    with torch.no_grad():
        for side, matrix in enumerate(matrices):
            attention.projection.weight[side, 0] = torch.tensor(numpy(matrix))


def draw_biases(layer) -> None:
    """Values for what Keras begins with at zero, so that tests can see it."""
    for number, variable in enumerate(layer.weights):
        if "bias" in variable.name:
            variable.assign(array(*variable.shape, seed=100 + number))
