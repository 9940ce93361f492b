"""Exact attention nearby, compressed attention far away, in one softmax.

The sequence is cut into chunks of `window` positions. A query of chunk c attends to

    the exact keys of chunks c - 1, c and c + 1, at least `window` positions on each side,
    the exact keys of the first `global_tokens` positions, and
    the R compressed rows, with  log (m_cj / m_j) + b_hj  added to the scores of row j,

where m_j is the number of real positions that row j is made of, and m_cj of those that the query
does not see exactly: what the window shows is not seen twice. A row with m_cj = 0 is hidden, so a
window that covers the input is full attention. A row of `conv`, `mean` and `max` is made of its
segment, a row of another kind of all positions.

b is the weight of a row. `mean` and `max` have b = log m_j: a row counts as often as the positions
it stands for, which is exact if their keys are equal. A row of `pool` is made of the positions of
its segment that are not global, with weights p, and b is their entropy. A learned E has a learned b
for each head and row (for `conv`, each head), which starts at 0: a row of a new E is a random
mixture, and starts as one more position. `fixed` has b = 0.

The queries of the first `global_tokens` positions attend to all positions exactly, and to no rows.

Legend: B batch, N positions, C chunks, W window, R compressed rows, H heads, G key/value heads,
D head size, M model size.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .chunk_attention import Keys, attend_chunks
from .chunks import in_chunks, out_of_chunks
from .compressed_kv import CompressedKV
from .cpu.linear import apply_linear
from .cpu.window_layer import use_cpu_window, window_layer_on_cpu
from .dropout import drop_rows
from .plain_sdpa import hidden_bias, join_heads, split_heads, zero_padding
from .plan import plan_for
from .projection_kinds import check_passed_projection
from .sdpa import sdpa
from .window_rows import (
    has_rows,
    row_bias_of_chunks,
    rows_mask,
    score_bias,
    segment_of,
    used_window,
    weight_dropout,
)
from .window_short import attend_in_one_call, is_inference, is_short

if TYPE_CHECKING:
    from .attention import LinformerAttention
    from .projection import Compression, Projection

# The part of a trained layer that is used: "window" as with k = 0, "rows" as with window = 0.
Branch = Literal["both", "window", "rows"]


def check(window: int, global_tokens: int, *, kind: str, k: int | None) -> None:
    """Refuse combinations that have no meaning."""
    checks.whole("window", window)
    checks.whole("global_tokens", global_tokens)
    for name, value in (("window", window), ("global_tokens", global_tokens)):
        if value and kind == "full":
            raise ValueError(
                f"projection='full' attends to every position exactly, so {name} has no effect: "
                f"got {name}={value}. Leave it 0, or use another projection."
            )
    if k == 0 and not window and kind != "full":
        raise ValueError(
            f"k must be at least 1: got 0. Only with a window may it be 0: got window={window}."
        )


def switch_off(model: nn.Module, branch: Literal["rows", "window"]) -> None:
    """Let every layer with both a window and rows attend to the other of the two only.

    For measuring what each contributes; training and inference use both.
    """
    layers = [m for m in model.modules() if getattr(m, "window", 0) and hasattr(m, "branch")]
    if not any(layer.k for layer in layers):
        raise ValueError(
            f"only an encoder with a window and k > 0 can do without its {branch}: got "
            f"{len(layers)} layers with a window and none with both."
        )
    for layer in layers:
        if layer.k:
            layer.branch = "window" if branch == "rows" else "rows"  # type: ignore[assignment]


def forward(
    layer: LinformerAttention,
    x: Tensor,
    mask: Tensor | None,
    context: Tensor | None,
    projection: Projection | None,
) -> Tensor:
    """The forward pass of a layer with a window or global tokens: x (B, N, M) -> (B, N, M)."""
    if context is not None:
        raise not_cross_attention(layer)
    if _window_covers(layer, x):
        return zero_padding(_attend_to_all(layer, x, mask, projection), mask)
    short = is_short(layer, x)
    if not short and use_cpu_window(layer, x):
        return zero_padding(
            window_layer_on_cpu(layer, zero_padding(x, mask), mask, projection), mask
        )
    query, key, value, rows = window_heads(layer, x, mask, projection)
    drop = weight_dropout(layer)
    attend = attend_in_one_call if short else partial(attend_with_window, drop=drop)
    mixed = attend(
        query,
        key,
        value,
        rows,
        layer.row_bias,
        window=used_window(layer),
        global_tokens=layer.global_tokens,
        mask=mask,
        segment=segment_of(layer, projection),
    )
    return zero_padding(apply_linear(layer.out_proj, mixed.flatten(2)), mask)


def _window_covers(layer: LinformerAttention, x: Tensor) -> bool:
    """Whether every query sees every position exactly, so that all rows are hidden.

    In inference alone: in training the rows are computed all the same, because DDP refuses
    parameters without a gradient.
    """
    length = x.shape[1]
    return (
        is_inference(layer)
        and length <= 2 * used_window(layer)
        and (layer.max_length is None or length <= layer.max_length)
    )


def _attend_to_all(
    layer: LinformerAttention, x: Tensor, mask: Tensor | None, projection: Projection | None
) -> Tensor:
    """Full attention: x (B, N, M) -> (B, N, M)."""
    if has_rows(layer):
        check_passed_projection(projection, own=layer.projection, k=layer.k)
    x = zero_padding(x, mask)
    query, key, value = (
        split_heads(apply_linear(linear, x), heads)
        for linear, heads in (
            (layer.q_proj, layer.num_heads),
            (layer.k_proj, layer.num_kv_heads),
            (layer.v_proj, layer.num_kv_heads),
        )
    )
    mixed = sdpa(query, key, value, mask=None if mask is None else mask[:, None, None])
    return apply_linear(layer.out_proj, join_heads(mixed))


def not_cross_attention(layer: LinformerAttention) -> ValueError:
    return ValueError(
        "window and global_tokens are for self-attention, where a query has neighbours: got a "
        f"context, window={layer.window}, global_tokens={layer.global_tokens}. Build "
        "cross-attention with both 0."
    )


def window_heads(
    layer: LinformerAttention,
    x: Tensor,
    mask: Tensor | None,
    projection: Projection | None,
) -> tuple[Tensor, Tensor, Tensor, CompressedKV | None]:
    """Queries (B, N, H, D), keys and values (B, N, G, D), and the compressed rows."""
    x = zero_padding(x, mask)
    query = apply_linear(layer.q_proj, x).unflatten(2, (layer.num_heads, -1))
    key = apply_linear(layer.k_proj, x).unflatten(2, (layer.num_kv_heads, -1))
    value = apply_linear(layer.v_proj, x).unflatten(2, (layer.num_kv_heads, -1))
    rows = None
    if has_rows(layer):
        rows = _rows(layer, x, key, value, mask, projection)
    if layer.dropout_kind == "rows":
        value = drop_rows(value, layer.dropout, layer.training)
        if rows is not None:
            rows = rows._replace(value=drop_rows(rows.value, layer.dropout, layer.training))
    return query, key, value, rows


def _rows(
    layer: LinformerAttention,
    x: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    projection: Projection | None,
) -> CompressedKV:
    """The compressed rows, of the input or of the keys and values, which are known already."""
    mask = rows_mask(layer.kind, layer.global_tokens, x, mask)
    plan = plan_for(layer, x, x.shape[1])
    return layer._key_and_value(x, mask, projection, plan, heads=(key, value))[0]


def compress_heads(
    compression: Compression, key: Tensor, value: Tensor, mask: Tensor | None
) -> CompressedKV:
    """E K and F V of keys and values (B, N, G, D): (B, G, R, D) each."""
    if mask is not None:  # a bias of W_k or W_v is not zero at padding
        key, value = (rows.masked_fill(~mask[..., None, None], 0.0) for rows in (key, value))
    key, value = compression.compress_keys(key, 0), compression.compress_keys(value, 1)
    rows = compression.add_bias(key, value)
    return CompressedKV(*rows, compression.keep, compression.row_bias)


def attend_with_window(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: CompressedKV | None,
    row_bias: Tensor | None,
    *,
    window: int,
    global_tokens: int,
    mask: Tensor | None,
    segment: int | None,
    drop: float = 0.0,
) -> Tensor:
    """query (B, N, H, D), key and value (B, N, G, D), rows of CompressedKV -> (B, N, H, D).

    row_bias: a learned b, (H, R or 1), or None. segment: the positions of a segment, None if rows
    are not segments. mask (B, N): True = a real position.
    """
    length = query.shape[1]
    if not torch.compiler.is_compiling():  # a comparison would pin the length
        window = min(window, length)  # one chunk, without padding to a longer one
    seen = min(global_tokens, length) if global_tokens else 0
    size = window or length
    chunks = (length + size - 1) // size
    near = far = None
    if window:
        near = _near(key, value, mask, chunks=chunks, window=window, seen=seen)
    if rows is not None:
        bias = row_bias_of_chunks(
            length,
            rows.key.shape[2],
            mask,
            score_bias(row_bias, rows, query.shape[2]),
            window=window,
            seen=seen,
            segment=segment,
            like=query,
        )
        far = Keys(rows.key.transpose(1, 2)[:, None], rows.value.transpose(1, 2)[:, None], bias)
    if seen:
        far = _with_global_keys(far, key[:, :seen], value[:, :seen], mask, chunks)
    mixed = attend_chunks(in_chunks(query, chunks, size), near, far, drop=drop)
    mixed = out_of_chunks(mixed, length)
    if not seen:
        return mixed
    of_global = sdpa(
        query[:, :seen].transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        mask=None if mask is None else mask[:, None, None],
        drop=drop,
    )
    return torch.cat((of_global.transpose(1, 2), mixed[:, seen:]), dim=1)


def _near(
    key: Tensor, value: Tensor, mask: Tensor | None, *, chunks: int, window: int, seen: int
) -> Keys:
    """The chunks with one chunk of padding before and after them. Global positions are hidden:
    they are among the far keys.
    """
    length = key.shape[1]
    if mask is None:
        mask = torch.ones(1, length, dtype=torch.bool, device=key.device)
    visible = mask & (torch.arange(length, device=key.device) >= seen)
    key, value, visible = (
        F.pad(rows, (0, 0) * (rows.dim() - 2) + (1, 1))
        for rows in (in_chunks(each, chunks, window) for each in (key, value, visible))
    )
    seen_by = torch.cat([visible[:, i : i + chunks] for i in range(3)], dim=2)  # (B, C, 3W)
    return Keys(key, value, hidden_bias(seen_by, key.dtype)[:, :, None, None])


def _with_global_keys(
    far: Keys | None, key: Tensor, value: Tensor, mask: Tensor | None, chunks: int
) -> Keys:
    """The keys of global positions (B, L, G, D), visible to every chunk, before the rows."""
    seen = key.shape[1]
    if mask is None:
        bias = key.new_zeros(1, 1, 1, seen)
    else:
        bias = hidden_bias(mask[:, None, None, :seen], key.dtype)
    key, value = key[:, None], value[:, None]
    if far is None:
        return Keys(key, value, bias)
    assert far.bias is not None
    samples = torch.broadcast_shapes(bias.shape[:1], far.bias.shape[:1])[0]
    sizes = (samples, chunks, far.bias.shape[2], -1)
    return Keys(
        torch.cat((key, far.key), dim=2),
        torch.cat((value, far.value), dim=2),
        torch.cat((bias.expand(sizes), far.bias.expand(sizes)), dim=3),
    )
