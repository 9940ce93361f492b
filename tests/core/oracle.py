"""A module's answer by `core/reference.py`: the same parameters, the paper's loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from linformer_kit.core import reference, reference_pool
from linformer_kit.core.projection_kinds import NOT_A_MATRIX

if TYPE_CHECKING:
    from torch import Tensor

    from linformer_kit import LinformerAttention
    from linformer_kit.core.projection import Projection


def weights_of(layer: LinformerAttention) -> reference.ReferenceWeights:
    return reference.ReferenceWeights(
        query=layer.q_proj.weight,
        key=layer.k_proj.weight,
        value=layer.v_proj.weight,
        output=layer.out_proj.weight,
        query_bias=layer.q_proj.bias,
        key_bias=layer.k_proj.bias,
        value_bias=layer.v_proj.bias,
        output_bias=layer.out_proj.bias,
    )


def compress_of(layer: LinformerAttention, side: int, projection: Projection) -> reference.Compress:
    kind = layer.kind
    if kind == "mean":
        return reference.compress_by_pooling(projection.width, torch.mean)
    if kind == "max":
        return reference.compress_by_pooling(projection.width, torch.amax)
    weight = projection.weight[min(side, projection.weight.shape[0] - 1)]
    if kind in ("linear", "fixed"):
        return reference.compress_by_matrix(weight[:, : layer.k], keep_scale=projection.keep_scale)
    if kind == "conv":
        return reference.compress_by_filter(weight, keep_scale=projection.keep_scale)
    if kind == "pool":
        return reference_pool.compress_by_attention(weight, projection.width)
    assert kind == "dynamic"
    return reference.compress_by_content(weight[:, : layer.k])


def answer(
    layer: LinformerAttention, x: Tensor, *, projection: Projection | None = None, **inputs: Tensor
) -> tuple[Tensor, list[list[Tensor]]]:
    """What `layer` ought to give for x."""
    if layer.kind == "full":
        key = value = reference.no_compression()
    else:
        owned = layer.projection if projection is None else projection
        key, value = compress_of(layer, 0, owned), compress_of(layer, 1, owned)
    return reference.attention(
        x,
        weights_of(layer),
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        compress_key=key,
        compress_value=value,
        compress_inputs=layer.kind in NOT_A_MATRIX,
        **inputs,
    )
