"""Keras' MultiHeadAttention with keys and values shortened from S rows to k.

    softmax(Q (E K)^T / sqrt(D)) F V,   K = X W_k + b_k,   V = X W_v + b_v

Everything but E and F is the stock layer's: its maps, its softmax, its dropout. As in the core, E
may be multiplied on either side of W_k; a bias meets it as (E 1) b in both orders.

Legend: B batch, T queries, S context positions, k shortened rows, H heads, D head size, C channels,
Z batch and whatever else is not attended over, in one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import keras
from keras import ops
from keras.src.backend import set_keras_mask  # what the stock layer uses; there is no public one

from ..core import checks
from .axes import SequenceAxes

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape = tuple[Any, ...]


@keras.saving.register_keras_serializable(package="linformer_kit")
class LinearMultiHeadAttention(keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """`keras.layers.MultiHeadAttention`, linear in the length of the input.

    All arguments of the stock layer and of its call are accepted and mean the same. New ones, by
    name only:

    Args:
        projection_dim: k, the number of rows that keys and values are shortened to. None is the
            stock layer.
        share_kv: one matrix for keys and values, E = F.
        max_length: the longest `value`, a number or one for each attention axis. By default the
            length of the `value` that the layer is built with, which must then be known.
        keep_scale: where positions are missing (padding, or an input below `max_length`) multiply
            row j by |E_j| / |E_j at what is there|, so that short inputs keep their scale.
        projection_initializer: of E and F, by default normal with variance 1 / max_length.

    Regulariser and constraint of kernels hold for E and F too. With several attention axes E
    shortens them together, to k rows in the first of them.

    What a masked position of key or value holds never reaches an output or a gradient. A mask that
    differs between queries (`use_causal_mask`, `attention_mask` with rows of its own for queries,
    `sliding_window`) has no meaning here, where rows are mixtures of all positions: it is refused.
    An `attention_mask` (B, 1, S), the same for all queries, is taken as a mask of keys.

    Attention scores have k where the stock layer's have S: (B, H, T, k).

    """

    def __init__(
        self,
        *args: Any,
        projection_dim: int | None = None,
        share_kv: bool = False,
        max_length: int | Sequence[int] | None = None,
        keep_scale: bool = True,
        projection_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        if projection_dim is not None:
            checks.positive("projection_dim", projection_dim)
        super().__init__(*args, **kwargs)
        if projection_dim is not None and self._sliding_window is not None:
            raise ValueError(
                "sliding_window hides other positions from each query, and a shortened row is a "
                f"mixture of all: got sliding_window={self._sliding_window} and projection_dim="
                f"{projection_dim}. Leave one of them out."
            )
        self.projection_dim = projection_dim
        self.share_kv = share_kv
        self.keep_scale = keep_scale
        self.max_length = _each_length(max_length)
        self._longest: tuple[int, ...] = ()  # known when built
        self.projection_initializer = (
            None
            if projection_initializer is None
            else keras.initializers.get(projection_initializer)
        )
        self.key_projection: Any = None  # E (k, S ...), one axis for each attention axis
        self.value_projection: Any = None  # F, or None where it is E

    def get_config(self) -> dict[str, Any]:
        initializer = self.projection_initializer
        return {
            **super().get_config(),
            "projection_dim": self.projection_dim,
            "share_kv": self.share_kv,
            "max_length": self.max_length,
            "keep_scale": self.keep_scale,
            "projection_initializer": (
                None if initializer is None else keras.initializers.serialize(initializer)
            ),
        }

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        super().build(query_shape, value_shape, key_shape)
        if self.projection_dim is None:
            return
        self._leading = len(value_shape) - 1
        lengths = self._longest_of(value_shape)
        if self.projection_dim > math.prod(lengths):
            raise ValueError(
                "projection_dim must be at most the number of positions, for it shortens: got "
                f"projection_dim={self.projection_dim} for {_times(lengths)} positions. Use a "
                "smaller one, or None for full attention."
            )
        self._longest = lengths
        self.key_projection = self._new_projection("key_projection", lengths)
        if not self.share_kv:
            self.value_projection = self._new_projection("value_projection", lengths)

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        if self.projection_dim is None:
            return super().call(
                query,
                value,
                key,
                query_mask=query_mask,
                value_mask=value_mask,
                key_mask=key_mask,
                attention_mask=attention_mask,
                return_attention_scores=return_attention_scores,
                training=training,
                use_causal_mask=use_causal_mask,
            )
        self._check_call(value, attention_mask, use_causal_mask)
        mask = self._mask_of_keys(value, value_mask, key_mask, attention_mask)
        key = value if key is None else key
        for tensor in (query, value, key):  # the maps below know no masks, and would warn
            set_keras_mask(tensor, None)
        short_key, short_value = self._shortened(key, value, mask)
        gate = self._gate_dense(query) if self._use_gate else None
        # JAX' fused kernel wants values of the size of keys. Asked for scores, Keras avoids it.
        unlike = keras.backend.backend() == "jax" and self.value_dim != self.key_dim
        output, scores = self._compute_attention(
            self.query_dense(query),
            short_key,
            short_value,
            None,
            training,
            return_attention_scores or unlike,
        )
        output = self.output_dense(output if gate is None else output * gate)
        return (output, scores) if return_attention_scores else output

    def compute_output_spec(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        if self.projection_dim is None:
            return super().compute_output_spec(
                query, value, key, return_attention_scores=return_attention_scores
            )
        self._check_call(value, attention_mask, use_causal_mask)
        output = super().compute_output_spec(query, value, key)
        if not return_attention_scores:
            return output
        others = [query.shape[axis] for axis in self._axes.others]
        queries = [query.shape[axis] for axis in self._attention_axes]
        rows = [self.projection_dim] + [1] * (len(queries) - 1)
        shape = (*others, self.num_heads, *queries, *rows)
        return output, keras.KerasTensor(shape, dtype=self.compute_dtype)

    def _shortened(self, key: Any, value: Any, mask: Any | None) -> tuple[Any, Any]:
        """E K and F V, (B, k, H, D) for inputs (B, S, C); mask (Z, S, 1)."""
        e = self.key_projection
        f = e if self.value_projection is None else self.value_projection
        rows: dict[tuple[int, int], Any] = {}  # E X, once where keys and values are of one input
        shortened = []
        for dense, x, variable in ((self.key_dense, key, e), (self.value_dense, value, f)):
            axes, sizes = self._axes, ops.shape(x)[:-1]
            heads = dense.kernel.shape[1:]  # (H, D)
            matrix = self._present(variable, x)
            scale = self._scale(variable, matrix, x, mask)
            if not self._input_first(dense, x):
                short = _shorten(matrix, _hidden(axes.rows(dense(x)), mask), scale)
                shortened.append(axes.lay_out(short, sizes, heads))
                continue
            which = (id(x), id(variable))
            if which not in rows:
                short = _shorten(matrix, _hidden(axes.rows(x), mask), scale)
                rows[which] = axes.lay_out(short, sizes, x.shape[-1:])
            through = dense(rows[which])
            if dense.bias is not None:  # it has added b, where (E 1) b is due
                sums = _row_sums(matrix, mask)  # (1 or Z, k)
                sums = sums if scale is None else sums * scale
                sizes = (1,) * len(sizes) if mask is None else sizes
                through = through + axes.lay_out(sums[..., None] - 1, sizes, (1, 1)) * dense.bias
            shortened.append(through)
        return shortened[0], shortened[1]

    def _input_first(self, dense: Any, x: Any) -> bool:
        """Whether (E X) W costs less than E (X W); a regulariser of activity wants to see X W."""
        if self._activity_regularizer is not None:
            return False
        channels, heads = x.shape[-1], math.prod(dense.kernel.shape[1:])
        length, k = math.prod(self._longest), self.projection_dim
        return k * channels * (length + heads) <= length * heads * (channels + k)

    def _present(self, variable: Any, x: Any) -> Any:
        """The columns of E for the positions of x: (k, S)."""
        matrix = ops.convert_to_tensor(variable)
        for number, axis in enumerate(self._attention_axes):
            if x.shape[axis] != self._longest[number]:
                matrix = ops.take(matrix, ops.arange(ops.shape(x)[axis]), axis=number + 1)
        return ops.reshape(matrix, (self.projection_dim, -1))

    def _scale(self, variable: Any, matrix: Any, x: Any, mask: Any | None) -> Any | None:
        """|E_j| / |E_j at what is there|, (1 or Z, k); None where everything is there."""
        whole = tuple(x.shape[axis] for axis in self._attention_axes) == self._longest
        if not self.keep_scale or (whole and mask is None):
            return None
        squares = ops.square(ops.cast(ops.convert_to_tensor(variable), "float32"))
        total = ops.sum(ops.reshape(squares, (1, self.projection_dim, -1)), axis=-1)
        left = _row_sums(ops.square(ops.cast(matrix, "float32")), mask)
        # As in the core: a row with nothing left is zero, and its scale has to be finite.
        floor = total * 1e-9 + 1e-37
        return ops.cast(ops.sqrt(total / ops.maximum(left, floor)), self.compute_dtype)

    @property
    def _axes(self) -> SequenceAxes:
        return SequenceAxes(tuple(self._attention_axes), self._leading)

    def _longest_of(self, value_shape: Shape) -> tuple[int, ...]:
        """The number of positions E is built for, on each attention axis."""
        axes = self._attention_axes
        given = self.max_length
        if given is None:
            given = tuple(value_shape[axis] for axis in axes)
        if None in given:
            raise ValueError(
                "E has a column for each position, so the longest `value` must be known when the "
                f"layer is built: got value_shape={tuple(value_shape)}. Give max_length=, or build "
                "with the longest input."
            )
        if len(given) != len(axes):
            raise ValueError(
                f"max_length must be one number for each of the {len(axes)} attention axes: got "
                f"{given}."
            )
        return tuple(int(length) for length in given)

    def _new_projection(self, name: str, lengths: tuple[int, ...]) -> Any:
        initializer = self.projection_initializer
        if initializer is None:
            initializer = keras.initializers.RandomNormal(stddev=math.prod(lengths) ** -0.5)
        else:  # initialisers give the same values each time they are asked
            initializer = initializer.__class__.from_config(initializer.get_config())
        return self.add_weight(
            name=name,
            shape=(self.projection_dim, *lengths),
            initializer=initializer,
            regularizer=self._kernel_regularizer,
            constraint=self._kernel_constraint,
        )

    def _check_call(self, value: Any, attention_mask: Any, use_causal_mask: bool) -> None:
        """Refuse what has no meaning for shortened rows, and what is too long."""
        if use_causal_mask:
            raise ValueError(
                "use_causal_mask=True has no meaning with projection_dim: a shortened row is a "
                "mixture of all positions, the later ones too. Use projection_dim=None, or "
                "linformer_kit.LinformerDecoder, which is causal in linear time."
            )
        if attention_mask is not None:
            shape = tuple(attention_mask.shape)
            one_for_all = len(shape) in (2, 3, 4) and all(size == 1 for size in shape[1:-1])
            if len(shape) == 2:  # (T, S)
                one_for_all = shape[0] == 1
            if not one_for_all or len(value.shape) != 3:
                raise ValueError(
                    "with projection_dim an attention_mask must be the same for all queries, "
                    "(B, 1, S): a shortened row is a mixture of all positions, and cannot be "
                    f"hidden from one query alone: got shape {shape}. Pass value_mask (B, S), or "
                    "use projection_dim=None."
                )
        lengths = [value.shape[axis] for axis in self._attention_axes]
        for length, longest in zip(lengths, self._longest, strict=True):
            if length is not None and length > longest:
                raise ValueError(
                    f"this layer was built for at most {_times(self._longest)} positions in "
                    f"`value`: got {_times(lengths)}. Shorten the input, or build the layer with "
                    "a larger max_length."
                )

    def _mask_of_keys(
        self, value: Any, value_mask: Any, key_mask: Any, attention_mask: Any
    ) -> Any | None:
        """What may be attended to, (Z, S, 1); None: everything."""
        masks = [mask for mask in (value_mask, key_mask) if mask is not None]
        if attention_mask is not None:
            masks.append(ops.reshape(attention_mask, (-1, ops.shape(attention_mask)[-1])))
        if not masks:
            return None
        together = ops.cast(masks[0], "bool")
        for mask in masks[1:]:
            together = ops.logical_and(together, ops.cast(mask, "bool"))
        return self._axes.rows(ops.broadcast_to(together, ops.shape(value)[:-1])[..., None])


def _hidden(rows: Any, mask: Any | None) -> Any:
    """Zero where the mask is False. (A product would let NaN through.)"""
    return rows if mask is None else ops.where(mask, rows, ops.zeros_like(rows))


def _shorten(matrix: Any, rows: Any, scale: Any | None) -> Any:
    """matrix (k, S) times rows (Z, S, C) -> (Z, k, C)"""
    short = ops.matmul(matrix[None], rows)  # with a batch of one: torch copies nothing then
    return short if scale is None else short * scale[..., None]


def _row_sums(matrix: Any, mask: Any | None) -> Any:
    """matrix (k, S) summed over what the mask (Z, S, 1) leaves: (1 or Z, k)."""
    if mask is None:
        return ops.sum(matrix, axis=1)[None]
    return ops.matmul(ops.cast(mask[..., 0], matrix.dtype), ops.transpose(matrix))


def _each_length(max_length: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if max_length is None:
        return None
    lengths = (max_length,) if isinstance(max_length, int) else tuple(max_length)
    for length in lengths:
        checks.positive("max_length", length)
    return lengths


def _times(sizes: Sequence[int | None]) -> str:
    return " x ".join(map(str, sizes))
