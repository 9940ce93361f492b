"""A layer with a window on the CPU fast path: what `window_attention.py` of this folder is given.

Legend: B batch, N positions, C chunks, g global positions, R compressed rows, L = g + R, H heads,
M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compressed_kv import CompressedKV
from ..dropout import drop_rows, dropout
from ..plain_sdpa import hidden_bias
from ..plan import plan_for
from ..window_rows import (
    has_rows,
    rows_from_input,
    segment_of,
    used_window,
    weight_dropout,
    weight_of_rows,
)
from .window_attention import attend_with_window_on_cpu, fits_kernel
from .window_blocks import Inputs, Layout

if TYPE_CHECKING:
    from ..attention import LinformerAttention
    from ..projection import Projection


def use_cpu_window(layer: LinformerAttention, x: Tensor) -> bool:
    """Whether the layer can be computed block by block, see `cpu/window_attention.py`.

    Rows of keys and values, instead of the input, need all keys first; rows of `pool` have a bias
    of their own in each sample.
    """
    return (
        used_window(layer) > 0
        and x.shape[1] > layer.global_tokens
        and not weight_dropout(layer)
        and fits_kernel(layer, x)
        and (not has_rows(layer) or (layer.kind != "pool" and rows_from_input(layer, x)))
    )


def window_layer_on_cpu(
    layer: LinformerAttention, x: Tensor, mask: Tensor | None, projection: Projection | None
) -> Tensor:
    """x (B, N, M), zero at padding -> (B, N, M)."""
    length, heads, seen = x.shape[1], layer.num_heads, layer.global_tokens
    window, segment = min(layer.window, length), segment_of(layer, projection)
    factor = head_bias = far_bias = far_shift = None
    rows: CompressedKV | None = None
    if has_rows(layer):
        plan = plan_for(layer, x, length)
        rows, x = layer._key_and_value(x, mask, projection, plan, reader=True)
    if layer.training and layer.dropout and layer.dropout_kind == "rows":
        factor = dropout(x.new_ones(*x.shape[:2], heads, 1), layer.dropout, True)
        if rows is not None:
            rows = rows._replace(value=drop_rows(rows.value, layer.dropout, True))
    if rows is not None:
        count = rows.key.shape[2]
        if layer.row_bias is not None:
            head_bias = F.pad(layer.row_bias.expand(-1, count), (seen, 0))
        of_chunks = weight_of_rows(
            length,
            count,
            mask,
            window=window,
            seen=seen,
            segment=segment,
            relative=layer.row_bias is not None,
            like=x,
        )
        if segment is None and not seen:
            far_shift = of_chunks[..., 0]  # the same for all rows
        else:
            far_bias = of_chunks
    if seen and (far_bias is not None or mask is not None):
        far_bias = _with_global_bias(far_bias, mask, seen, x)

    def plain(x: Tensor, *tensors: Tensor) -> Tensor:
        from ..window_attention import attend_with_window

        weights, (row_key, row_value, row_bias) = tensors[:8], tensors[8:]
        query, key, value = (
            F.linear(x, *weights[i : i + 2]).unflatten(2, (heads, -1)) for i in (0, 2, 4)
        )
        mixed = attend_with_window(
            query,
            key,
            value if factor is None else value * factor,
            None if rows is None else CompressedKV(row_key, row_value, None),
            None if row_bias is None else row_bias[:, seen:],
            window=window,
            global_tokens=seen,
            mask=mask,
            segment=segment,
        )
        return F.linear(mixed.flatten(2), *weights[6:])

    linears = (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj)
    weights = [tensor for linear in linears for tensor in (linear.weight, linear.bias)]
    row_key, row_value = (None, None) if rows is None else rows[:2]
    inputs = Inputs._make((x, *weights, row_key, row_value, head_bias))
    layout = Layout(
        heads=heads,
        window=window,
        seen=seen,
        key_bias=None if mask is None else hidden_bias(mask.contiguous(), x.dtype),
        far_bias=far_bias,
        far_shift=far_shift,
        value_factor=factor,
        plain=plain,
    )
    return attend_with_window_on_cpu(inputs, layout)


def _with_global_bias(bias: Tensor | None, mask: Tensor | None, seen: int, x: Tensor) -> Tensor:
    """The bias of global positions before that of rows (B or 1, C, R): (B or 1, C or 1, L)."""
    first = x.new_zeros(1, 1, seen)
    if mask is not None:
        first = hidden_bias(mask[:, None, :seen], x.dtype)
    if bias is None:
        return first
    sizes = (torch.broadcast_shapes(first.shape[:1], bias.shape[:1])[0], bias.shape[1], -1)
    return torch.cat((first.expand(sizes), bias.expand(sizes)), dim=2)
