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
it stands for, which is exact if their keys are equal. A learned E has a learned b for each head and
row (for `conv`, each head), which starts at 0: a row of a new E is a random mixture, and starts as
one more position. `fixed` has b = 0.

The queries of the first `global_tokens` positions attend to all positions exactly, and to no rows.

Legend: B batch, N positions, C chunks, W window, R compressed rows, H heads, G key/value heads,
D head size, M model size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .chunk_attention import Keys, attend_chunks, hidden_bias
from .chunks import in_chunks, out_of_chunks
from .compressed_kv import CompressedKV
from .cpu.predicate import is_unmodified_linear
from .cpu.window_attention import Inputs, Layout, attend_with_window_on_cpu, use_cpu_window
from .dropout import drop_rows, dropout
from .plain_sdpa import attention_weights, hidden, join_heads, repeat_kv, zero_padding
from .plan import plan_for
from .projection_kinds import LEARNED, NOT_A_MATRIX, SEGMENT_KINDS
from .sdpa import sdpa

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


def build_row_bias(kind: str, k: int | None, num_heads: int) -> nn.Parameter | None:
    """b (H, k), or (H, 1) for `conv`, whose number of rows depends on the input."""
    if not k or kind not in LEARNED:
        return None
    return nn.Parameter(torch.zeros(num_heads, 1 if kind == "conv" else k))


def reset_row_bias(layer: LinformerAttention) -> None:
    if layer.row_bias is not None:
        nn.init.zeros_(layer.row_bias)


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
    if _on_cpu(layer, x):
        return zero_padding(_forward_on_cpu(layer, zero_padding(x, mask), mask, projection), mask)
    query, key, value, rows = _heads(layer, x, mask, projection)
    mixed = attend_with_window(
        query,
        key,
        value,
        rows,
        layer.row_bias,
        window=_window(layer),
        global_tokens=layer.global_tokens,
        mask=mask,
        segment=_segment(layer, projection),
        drop=_weight_dropout(layer),
    )
    return zero_padding(layer.out_proj(mixed.flatten(2)), mask)


def _on_cpu(layer: LinformerAttention, x: Tensor) -> bool:
    """Whether the layer can be computed block by block, see `cpu/window_attention.py`.

    Rows of keys and values, instead of the input, need all keys first.
    """
    return (
        _window(layer) > 0
        and x.shape[1] > layer.global_tokens
        and not _weight_dropout(layer)
        and use_cpu_window(layer, x)
        and (not _has_rows(layer) or _from_input(layer, x))
    )


def _forward_on_cpu(
    layer: LinformerAttention, x: Tensor, mask: Tensor | None, projection: Projection | None
) -> Tensor:
    """x (B, N, M), zero at padding -> (B, N, M)."""
    length, heads, seen = x.shape[1], layer.num_heads, layer.global_tokens
    window, segment = min(layer.window, length), _segment(layer, projection)
    rows = factor = head_bias = far_bias = far_shift = None
    if _has_rows(layer):
        plan = plan_for(layer, x, length)
        rows, x = layer._key_and_value(x, mask, projection, plan, reader=True)
        rows = rows._replace(key=repeat_kv(rows.key, heads), value=repeat_kv(rows.value, heads))
    if layer.training and layer.dropout and layer.dropout_kind == "rows":
        factor = dropout(x.new_ones(*x.shape[:2], heads, 1), layer.dropout, True)
        if rows is not None:
            rows = rows._replace(value=drop_rows(rows.value, layer.dropout, True))
    if rows is not None:
        count = rows.key.shape[2]
        if layer.row_bias is not None:
            head_bias = F.pad(layer.row_bias.expand(-1, count), (seen, 0))
        far_bias = weight_of_rows(
            length, count, mask, window=window, seen=seen, segment=segment, like=x,
            relative=layer.row_bias is not None,
        )  # fmt: skip
        if segment is None and not seen:  # the same for all rows of a chunk
            far_bias, far_shift = None, far_bias[..., 0]
    if seen and (far_bias is not None or mask is not None):
        far_bias = _with_global_bias(far_bias, mask, seen, x)

    def plain(x: Tensor, *tensors: Tensor) -> Tensor:
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
    inputs = Inputs(
        x,
        *(tensor for linear in linears for tensor in (linear.weight, linear.bias)),
        *((None, None) if rows is None else rows[:2]),
        head_bias,
    )
    layout = Layout(
        heads=heads,
        window=window,
        seen=seen,
        key_bias=None if mask is None else hidden_bias(mask, x.dtype),
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
    sizes = (max(first.shape[0], bias.shape[0]), bias.shape[1], -1)
    return torch.cat((first.expand(sizes), bias.expand(sizes)), dim=2)


def _weight_dropout(layer: LinformerAttention) -> float:
    return layer.dropout if layer.training and layer.dropout_kind == "weights" else 0.0


def _has_rows(layer: LinformerAttention) -> bool:
    return bool(layer.k) and layer.branch != "window"


def _from_input(layer: LinformerAttention, x: Tensor) -> bool:
    """Whether the rows are compressed from the input, not from keys and values."""
    unmodified = is_unmodified_linear(layer.k_proj) and is_unmodified_linear(layer.v_proj)
    by_input = plan_for(layer, x, x.shape[1]).shorten == "input" and unmodified
    return layer.kind in NOT_A_MATRIX or by_input


def not_cross_attention(layer: LinformerAttention) -> ValueError:
    return ValueError(
        "window and global_tokens are for self-attention, where a query has neighbours: got a "
        f"context, window={layer.window}, global_tokens={layer.global_tokens}. Build "
        "cross-attention with both 0."
    )


def _heads(
    layer: LinformerAttention,
    x: Tensor,
    mask: Tensor | None,
    projection: Projection | None,
) -> tuple[Tensor, Tensor, Tensor, CompressedKV | None]:
    """Queries (B, N, H, D), keys and values (B, N, G, D), and the compressed rows."""
    x = zero_padding(x, mask)
    query = layer.q_proj(x).unflatten(2, (layer.num_heads, -1))
    key = layer.k_proj(x).unflatten(2, (layer.num_kv_heads, -1))
    value = layer.v_proj(x).unflatten(2, (layer.num_kv_heads, -1))
    rows = None
    if _has_rows(layer):
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
    if _from_input(layer, x):
        return layer._key_and_value(x, mask, projection, plan_for(layer, x, x.shape[1]))[0]
    return compress_heads(layer.compression_of(x, mask, projection), key, value, mask)


def compress_heads(
    compression: Compression, key: Tensor, value: Tensor, mask: Tensor | None
) -> CompressedKV:
    """E K and F V of keys and values (B, N, G, D): (B, G, R, D) each."""
    if mask is not None:  # a bias of W_k or W_v is not zero at padding
        key, value = (rows.masked_fill(~mask[..., None, None], 0.0) for rows in (key, value))
    key, value = compression.compress_keys(key, 0), compression.compress_keys(value, 1)
    return CompressedKV(*compression.add_bias(key, value), compression.keep)


def trace(
    layer: LinformerAttention,
    x: Tensor,
    mask: Tensor | None,
    context: Tensor | None,
    projection: Projection | None,
) -> tuple[Tensor, Tensor]:
    """As forward, and the attention weights (B, H, N, R + N): to the rows, then to the positions.

    Those of full attention are materialised: the weight of a position that is not seen is zero.
    """
    checks.sequence("x", x, layer.dim, mask=mask)
    if context is not None:
        raise not_cross_attention(layer)
    query, key, value, rows = _heads(layer, x, mask, projection)
    length, window = x.shape[1], _window(layer)
    seen = min(layer.global_tokens, length)
    position = torch.arange(length, device=x.device)
    of_global = position < seen
    visible = of_global | of_global[:, None]
    if window:
        chunk = position // window
        visible = visible | ((chunk[:, None] - chunk).abs() <= 1)
    visible = visible[None] if mask is None else visible & mask[:, None]  # (B or 1, N, N)
    bias = hidden_bias(visible, x.dtype)[:, None]  # (B or 1, 1, N, N)
    if rows is not None:
        of_rows = row_bias_of_chunks(
            length,
            rows.key.shape[2],
            mask,
            layer.row_bias,
            window=window,
            seen=seen,
            segment=_segment(layer, projection),
            like=query,
        )
        of_rows = of_rows[:, position // window if window else position * 0].transpose(1, 2)
        of_rows = of_rows.masked_fill(of_global[:, None], hidden(x.dtype))  # (B or 1, H or 1, N, R)
        sizes = (max(len(bias), len(of_rows)), of_rows.shape[1], length, -1)
        bias = torch.cat((of_rows.expand(sizes), bias.expand(sizes)), dim=3)
        key = torch.cat((rows.key.transpose(1, 2), key), dim=1)
        value = torch.cat((rows.value.transpose(1, 2), value), dim=1)
    weights = attention_weights(query.transpose(1, 2), key.transpose(1, 2), None, bias)
    if mask is not None:
        weights = weights.masked_fill(~mask[:, None, :, None], 0.0)
    used = weights
    if layer.training and layer.dropout_kind == "weights":
        used = F.dropout(weights, layer.dropout)
    mixed = used @ repeat_kv(value.transpose(1, 2), layer.num_heads)
    return zero_padding(layer.out_proj(join_heads(mixed)), mask), weights


def _window(layer: LinformerAttention) -> int:
    return 0 if layer.branch == "rows" else layer.window


def _segment(layer: LinformerAttention, projection: Projection | None) -> int | None:
    """The length of a segment, None for kinds whose rows mix all positions."""
    projection = layer.projection if projection is None else projection
    if not layer.k or projection is None or layer.kind not in SEGMENT_KINDS:
        return None
    assert projection.max_length is not None
    return math.ceil(projection.max_length / layer.k)


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
            row_bias,
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
    sizes = (max(bias.shape[0], far.bias.shape[0]), chunks, far.bias.shape[2], -1)
    return Keys(
        torch.cat((key, far.key), dim=2),
        torch.cat((value, far.value), dim=2),
        torch.cat((bias.expand(sizes), far.bias.expand(sizes)), dim=3),
    )


def row_bias_of_chunks(
    length: int,
    rows: int,
    mask: Tensor | None,
    row_bias: Tensor | None,
    *,
    window: int,
    seen: int,
    segment: int | None,
    like: Tensor,
) -> Tensor:
    """log (m_cj / m_j) + b for every chunk and row, (B or 1, C, H or 1, R), very low where
    m_cj = 0. Without a learned b, row_bias (H, R or 1), segments are counted: log m_cj.
    """
    bias = weight_of_rows(
        length,
        rows,
        mask,
        window=window,
        seen=seen,
        segment=segment,
        relative=row_bias is not None,
        like=like,
    )[:, :, None]
    return bias if row_bias is None else bias + row_bias


def weight_of_rows(
    length: int,
    rows: int,
    mask: Tensor | None,
    *,
    window: int,
    seen: int,
    segment: int | None,
    relative: bool,
    like: Tensor,
) -> Tensor:
    """log (m_cj / m_j) for every chunk and row, (B or 1, C, R), very low where m_cj = 0.

    `seen`: the number of global positions. `relative=False` gives log m_cj for segments. `like`: a
    tensor of the device and dtype.
    """
    device = like.device
    if mask is None:
        mask = torch.ones(1, length, dtype=torch.bool, device=device)
    real = F.pad(mask.long().cumsum(1), (1, 0))  # (B or 1, N + 1): the positions before each
    outside = mask & (torch.arange(length, device=device) >= seen)
    before = F.pad(outside.long().cumsum(1), (1, 0))
    size = window or length
    start = torch.arange(0, length, size, device=device)  # of each chunk
    first = (start - window).clamp_min(0)  # the window of chunk c: first[c] <= i < last[c]
    last = (start + 2 * window).clamp_max(length) if window else first
    if segment is None:
        inside = before[:, last] - before[:, first]  # (B or 1, C)
        left = (before[:, -1:] - inside)[..., None]
        total = real[:, -1, None, None]
    else:
        begin = torch.arange(rows, device=device) * segment
        end = (begin + segment).clamp_max(length)
        both_first = torch.maximum(begin, first[:, None])  # (C, R)
        both_last = torch.maximum(torch.minimum(end, last[:, None]), both_first)
        inside = before[:, both_last] - before[:, both_first]  # (B or 1, C, R)
        left = (before[:, end] - before[:, begin])[:, None] - inside
        total = (real[:, end] - real[:, begin])[:, None]
    logs = left.clamp_min(1).to(torch.promote_types(like.dtype, torch.float32)).log()
    if segment is None or relative:
        logs = logs - total.clamp_min(1).to(logs.dtype).log()
    return torch.where(left > 0, logs, hidden(like.dtype)).to(like.dtype).expand(-1, -1, rows)
