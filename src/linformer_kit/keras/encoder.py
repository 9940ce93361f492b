"""A Linformer layer for Keras: attention and feed-forward, each with its norm and its residual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from keras import ops
from keras.src.backend import get_keras_mask, set_keras_mask  # as in `attention.py`

from ..core import checks
from .attention import LinearMultiHeadAttention

if TYPE_CHECKING:
    from collections.abc import Sequence


@keras.saving.register_keras_serializable(package="linformer_kit")
class LinformerEncoder(keras.layers.Layer):  # type: ignore[misc]
    """One encoder layer, (B, S, C) -> (B, S, C), in the shape of keras-hub's `TransformerEncoder`.

    pre (`normalize_first`):  x = x + attention(norm(x));  x = x + feed_forward(norm(x))
    post:                     x = norm(x + attention(x));  x = norm(x + feed_forward(x))

    Args:
        intermediate_dim: the hidden size of the feed-forward part.
        num_heads: of the attention; C must be divisible by it.
        projection_dim, share_kv, max_length, keep_scale: as in `LinearMultiHeadAttention`;
            projection_dim=None is the ordinary Transformer layer.
        dropout: on the attention weights and on the output of both parts.
        activation: of the feed-forward part.
        layer_norm_epsilon: of both norms.
        kernel_initializer, bias_initializer: of all dense maps.
        normalize_first: pre or post, as above.

    padding_mask (B, S) is True (or 1) at real positions. A mask that Keras carries along with the
    input holds too.

    """

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        projection_dim: int | None = None,
        *,
        share_kv: bool = False,
        max_length: int | Sequence[int] | None = None,
        keep_scale: bool = True,
        dropout: float = 0.0,
        activation: Any = "relu",
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        normalize_first: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        checks.positive("intermediate_dim", intermediate_dim)
        checks.positive("num_heads", num_heads)
        checks.probability("dropout", dropout)
        self.supports_masking = True
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.projection_dim = projection_dim
        self.share_kv = share_kv
        self.max_length = max_length
        self.keep_scale = keep_scale
        self.dropout = dropout
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.normalize_first = normalize_first

    def build(self, inputs_shape: tuple[int | None, ...]) -> None:
        channels = inputs_shape[-1]
        if channels is None or channels % self.num_heads:
            raise ValueError(
                "the channels of the input must be divisible by num_heads: got "
                f"{channels} and num_heads={self.num_heads}."
            )
        self.attention = LinearMultiHeadAttention(
            self.num_heads,
            channels // self.num_heads,
            projection_dim=self.projection_dim,
            share_kv=self.share_kv,
            max_length=self.max_length,
            keep_scale=self.keep_scale,
            dropout=self.dropout,
            kernel_initializer=_again(self.kernel_initializer),
            bias_initializer=_again(self.bias_initializer),
            dtype=self.dtype_policy,
            name="attention",
        )
        self.attention.build(inputs_shape, inputs_shape)
        self.attention_norm = self._new_norm("attention_norm", inputs_shape)
        self.hidden = self._new_dense(
            "hidden", self.intermediate_dim, inputs_shape, activation=self.activation
        )
        hidden_shape = (*inputs_shape[:-1], self.intermediate_dim)
        self.output_dense = self._new_dense("output_dense", channels, hidden_shape)
        self.feed_forward_norm = self._new_norm("feed_forward_norm", inputs_shape)
        self.drop = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy, name="drop")

    def call(
        self,
        inputs: Any,
        padding_mask: Any = None,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        mask = get_keras_mask(inputs)
        if padding_mask is not None:
            given = ops.cast(padding_mask, "bool")
            mask = given if mask is None else ops.logical_and(ops.cast(mask, "bool"), given)
        set_keras_mask(inputs, None)  # it is passed on below; Keras puts it on the output again
        source = self.attention_norm(inputs) if self.normalize_first else inputs
        attended = self.attention(
            source,
            source,
            value_mask=mask,
            attention_mask=attention_mask,
            training=training,
            return_attention_scores=return_attention_scores,
        )
        scores = None
        if return_attention_scores:
            attended, scores = attended
        x = self._added(inputs, attended, self.attention_norm, training)
        source = self.feed_forward_norm(x) if self.normalize_first else x
        fed = self.output_dense(self.hidden(source))
        x = self._added(x, fed, self.feed_forward_norm, training)
        return (x, scores) if return_attention_scores else x

    def compute_output_spec(
        self,
        inputs: Any,
        padding_mask: Any = None,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
    ) -> Any:
        return self.attention.compute_output_spec(
            inputs,
            inputs,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
        )

    def compute_output_shape(self, inputs_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "projection_dim": self.projection_dim,
            "share_kv": self.share_kv,
            "max_length": self.max_length,
            "keep_scale": self.keep_scale,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "normalize_first": self.normalize_first,
        }

    def _added(self, x: Any, branch: Any, norm: Any, training: bool | None) -> Any:
        x = x + self.drop(branch, training=training)
        return x if self.normalize_first else norm(x)

    def _new_norm(self, name: str, shape: tuple[int | None, ...]) -> Any:
        norm = keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )
        norm.build(shape)
        return norm

    def _new_dense(
        self, name: str, units: int, shape: tuple[int | None, ...], activation: Any = None
    ) -> Any:
        dense = keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=_again(self.kernel_initializer),
            bias_initializer=_again(self.bias_initializer),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(shape)
        return dense


def _again(initializer: Any) -> Any:
    """A new one of the same kind: one initialiser gives the same values each time it is asked."""
    return initializer.__class__.from_config(initializer.get_config())
