"""The paper's equations as plain loops: the oracle every fast path is tested against.

Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768, equation 7:

    head_h = softmax( Q_h (E K_h)^T / sqrt(D) ) (F V_h)

Slow on purpose. One sample, one head, one row at a time; a padded position is not masked but left
out, so nothing here can leak. Every function is differentiable, so gradients can be compared too.

Legend: N queries, S context positions, R shortened rows (K in the paper), H heads, G key/value
heads, D head size, M model size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .shortening import MAX_SCALE

# (head, inputs, rows, positions) -> R shortened rows. `inputs` are the S rows of X the keys were
# made from, `rows` what is to be shortened, `positions` the indices that are not padding.
Shorten = Callable[[int, Tensor, Tensor, list[int]], list[Tensor]]


@dataclass(frozen=True)
class ReferenceWeights:
    """The weights of one attention layer; a linear map is `x @ weight.T + bias`."""

    query: Tensor  # (H*D, M)
    key: Tensor  # (G*D, M)
    value: Tensor  # (G*D, M)
    output: Tensor  # (M, H*D)
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None


def shorten_by_matrix(matrix: Tensor, *, keep_scale: bool = True) -> Shorten:
    """`linear` and `fixed`: row j is sum_i E[j, i] x_i, with E (heads, R, max_length).

    Where positions are missing (padding, or an input shorter than max_length), what is left of
    row j is scaled by |E[j]| / |E[j, present]|, which keeps the variance of the sum; by MAX_SCALE
    where that is larger, and not at all where E[j] is zero.
    """

    def shorten(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        weight = matrix[min(head, matrix.shape[0] - 1)]
        shortened = []
        for j in range(weight.shape[0]):
            total = torch.zeros_like(rows[0])
            for i in positions:
                total = total + weight[j, i] * rows[i]
            if keep_scale and positions:
                total = total * _visible_scale(weight[j], positions)
            shortened.append(total)
        return shortened

    return shorten


def _visible_scale(row: Tensor, positions: list[int]) -> Tensor | float:
    """|row| / |row at positions|, at most MAX_SCALE; 1 for a row of zeros."""
    if not row.any():
        return 1.0
    if row[positions].norm() * MAX_SCALE < row.norm():
        return MAX_SCALE
    return row.norm() / row[positions].norm()


def _windows(length: int, width: int, positions: list[int]) -> list[list[int]]:
    """The positions present in each window of `width`; windows with none are dropped."""
    starts = range(0, length, width)
    windows = [[i for i in positions if start <= i < start + width] for start in starts]
    return [window for window in windows if window]


def shorten_by_filter(taps: Tensor, *, keep_scale: bool = True) -> Shorten:
    """`conv`: row j is sum_t taps[t] x_(j*width + t), kernel and stride both `width`.

    taps (heads, width). An incomplete window is scaled as in `shorten_by_matrix`.
    """

    def shorten(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        filter_ = taps[min(head, taps.shape[0] - 1)]
        width = filter_.shape[0]
        shortened = []
        for window in _windows(rows.shape[0], width, positions):
            total = torch.zeros_like(rows[0])
            for i in window:
                total = total + filter_[i % width] * rows[i]
            if keep_scale:
                total = total * _visible_scale(filter_, [i % width for i in window])
            shortened.append(total)
        return shortened

    return shorten


def shorten_by_mean(width: int) -> Shorten:
    """`mean`: row j is the mean of what is present in window j."""

    def shorten(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        windows = _windows(rows.shape[0], width, positions)
        return [rows[window].mean(0) for window in windows]

    return shorten


def shorten_by_max(width: int) -> Shorten:
    """`max`: row j is the largest value of each channel in window j."""

    def shorten(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        windows = _windows(rows.shape[0], width, positions)
        return [rows[window].amax(0) for window in windows]

    return shorten


def shorten_by_content(maps: Tensor) -> Shorten:
    """`dynamic`: row j is sum_i p_ij x_i with p_j = softmax over present i of (x_i . maps[j]).

    maps (heads, R, M).
    """

    def shorten(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        weight = maps[min(head, maps.shape[0] - 1)]
        shortened = []
        for j in range(weight.shape[0]):
            total = torch.zeros_like(rows[0])
            if positions:
                share = torch.stack([inputs[i] @ weight[j] for i in positions]).softmax(0)
                for p, i in zip(share, positions, strict=True):
                    total = total + p * rows[i]
            shortened.append(total)
        return shortened

    return shorten


def shorten_nothing() -> Shorten:
    """`full`: every present position stays, which is ordinary attention."""

    def shorten(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        return [rows[i] for i in positions]

    return shorten


def _affine(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return rows @ weight.T if bias is None else rows @ weight.T + bias


def attention(
    x: Tensor,
    weights: ReferenceWeights,
    *,
    num_heads: int,
    num_kv_heads: int,
    shorten_key: Shorten,
    shorten_value: Shorten,
    shorten_inputs: bool = False,
    context: Tensor | None = None,
    mask: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> tuple[Tensor, list[list[Tensor]]]:
    """Multi-head Linformer attention, by loops over samples, heads and queries.

    x (B, N, M), context (B, S, M) or None for self-attention; masks True = a real position.
    Rows of the output at padded queries are zero. `shorten_inputs` shortens X before W_k and W_v
    rather than after: the same for every kind that is a matrix, a different function for `max`.

    Returns the output (B, N, M) and, for each sample and head, the weights (N, R).
    """
    if context is None:
        context, context_mask = x, mask
    head_dim = weights.query.shape[0] // num_heads
    make_rows = _shortened_inputs if shorten_inputs else _shortened
    outputs, all_weights = [], []
    for b in range(x.shape[0]):
        positions = _present(context, context_mask, b)
        queries = set(_present(x, mask, b))
        heads, sample_weights = [], []
        for h in range(num_heads):
            g = h * num_kv_heads // num_heads
            own = slice(h * head_dim, (h + 1) * head_dim)
            shared = slice(g * head_dim, (g + 1) * head_dim)
            key = make_rows(
                context[b],
                positions,
                weights.key[shared],
                _part(weights.key_bias, shared),
                shorten_key,
                g,
            )
            value = make_rows(
                context[b],
                positions,
                weights.value[shared],
                _part(weights.value_bias, shared),
                shorten_value,
                g,
            )
            rows, row_weights = [], []
            for i in range(x.shape[1]):
                if i not in queries or not key:
                    rows.append(torch.zeros(head_dim, dtype=x.dtype))
                    row_weights.append(torch.zeros(len(key), dtype=x.dtype))
                    continue
                query = _affine(x[b, i], weights.query[own], _part(weights.query_bias, own))
                scores = torch.stack([query @ k_j for k_j in key]) / head_dim**0.5
                p = scores.softmax(0)
                rows.append(sum((p_j * v_j for p_j, v_j in zip(p, value, strict=True)), 0 * query))
                row_weights.append(p)
            heads.append(torch.stack(rows))  # (N, D)
            sample_weights.append(torch.stack(row_weights))  # (N, R)
        mixed = _affine(torch.cat(heads, dim=1), weights.output, weights.output_bias)  # (N, M)
        keep = torch.tensor([[i in queries] for i in range(x.shape[1])])
        outputs.append(torch.where(keep, mixed, torch.zeros_like(mixed)))
        all_weights.append(sample_weights)
    return torch.stack(outputs), all_weights


def _present(rows: Tensor, mask: Tensor | None, sample: int) -> list[int]:
    return [i for i in range(rows.shape[1]) if mask is None or bool(mask[sample, i])]


def _part(bias: Tensor | None, rows: slice) -> Tensor | None:
    return None if bias is None else bias[rows]


def _shortened(
    inputs: Tensor,
    positions: list[int],
    weight: Tensor,
    bias: Tensor | None,
    shorten: Shorten,
    head: int,
) -> list[Tensor]:
    """E (X W + b): the order of the paper."""
    return shorten(head, inputs, _affine(inputs, weight, bias), positions)


def _shortened_inputs(
    inputs: Tensor,
    positions: list[int],
    weight: Tensor,
    bias: Tensor | None,
    shorten: Shorten,
    head: int,
) -> list[Tensor]:
    """(E X) W + b: the definition for `max`, which does not commute with W."""
    return [_affine(row, weight, bias) for row in shorten(head, inputs, inputs, positions)]


def with_neighbours(x: Tensor, taps: Tensor) -> Tensor:
    """Each row of x (N, M) and what stands beside it: taps (M, W), the middle one for itself."""
    middle = taps.shape[1] // 2
    rows = []
    for i in range(x.shape[0]):
        row = x[i]
        for j in range(taps.shape[1]):
            if 0 <= i + j - middle < x.shape[0]:
                row = row + taps[:, j] * x[i + j - middle]
        rows.append(row)
    return torch.stack(rows)


def rotated(rows: Tensor, position: int, rotary_dim: int) -> Tensor:
    """One head at one position, its first `rotary_dim` channels turned (Su et al. 2021)."""
    half = rotary_dim // 2
    turned = list(rows)
    for pair in range(half):
        angle = torch.tensor(position * 1e4 ** (-pair / half), dtype=torch.float64)
        cos, sin = angle.cos().to(rows.dtype), angle.sin().to(rows.dtype)
        first, second = rows[pair], rows[half + pair]
        turned[pair] = first * cos - second * sin
        turned[half + pair] = first * sin + second * cos
    return torch.stack(turned)


def causal_attention(
    x: Tensor,
    weights: ReferenceWeights,
    *,
    num_heads: int,
    num_kv_heads: int,
    rotary_dim: int,
    slot_weight: Tensor | None,
    slot_bias: Tensor | None,
    window: int,
    bound: float,
) -> Tensor:
    """Causal attention of one text x (N, M), token by token.

    The token at t, of chunk c = t // window, attends in one softmax to the tokens from
    (c - 1) * window to t, and to a slot for each row j of slot_weight (K, M), made of the tokens i
    before (c - 1) * window:

        slot_j = sum_i exp(s_ij) (key_i, value_i) / sum_i exp(s_ij)
        s_ij = bound * tanh((slot_weight_j . x_i + slot_bias_j) / bound)

    where the rotated channels of a slot's key are zero. Without slot_weight every earlier token is
    seen exactly, which is ordinary causal attention.
    """
    head_dim = weights.query.shape[0] // num_heads
    query = _affine(x, weights.query, weights.query_bias).unflatten(1, (num_heads, head_dim))
    key = _affine(x, weights.key, weights.key_bias).unflatten(1, (num_kv_heads, head_dim))
    value = _affine(x, weights.value, weights.value_bias).unflatten(1, (num_kv_heads, head_dim))
    rows = []
    for t in range(x.shape[0]):
        first = 0 if slot_weight is None else max(0, (t // window - 1) * window)
        heads = []
        for h in range(num_heads):
            g = h * num_kv_heads // num_heads
            keys = [rotated(key[i, g], i, rotary_dim) for i in range(first, t + 1)]
            values = [value[i, g] for i in range(first, t + 1)]
            for j in range(0 if slot_weight is None or first == 0 else slot_weight.shape[0]):
                assert slot_weight is not None
                slot_key, slot_value, total = 0 * key[0, g], 0 * value[0, g], 0 * key[0, g, 0]
                for i in range(first):
                    score = x[i] @ slot_weight[j] + (0 if slot_bias is None else slot_bias[j])
                    share = (bound * (score / bound).tanh()).exp()
                    slot_key = slot_key + share * key[i, g]
                    slot_value = slot_value + share * value[i, g]
                    total = total + share
                known = torch.arange(head_dim) >= rotary_dim
                keys.append(torch.where(known, slot_key / total, torch.zeros_like(slot_key)))
                values.append(slot_value / total)
            turned = rotated(query[t, h], t, rotary_dim)
            p = torch.stack([turned @ k_i for k_i in keys]).div(head_dim**0.5).softmax(0)
            heads.append(
                torch.stack([p_i * v_i for p_i, v_i in zip(p, values, strict=True)]).sum(0)
            )
        rows.append(_affine(torch.cat(heads), weights.output, weights.output_bias))
    return torch.stack(rows)
