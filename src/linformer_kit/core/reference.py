"""The paper's equations as plain loops: the oracle for every fast path.

Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768, equation 7:

    head_h = softmax( Q_h (E K_h)^T / sqrt(D) ) (F V_h)

Slow on purpose: one sample, one head, one row at a time. Padded positions are left out, not masked.
Every function is differentiable. `reference_causal.py` has the decoder's attention.

Legend: N queries, S context positions, R compressed rows (K in the paper), H heads, G key/value
heads, D head size, M model size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .visible_scale import MAX_SCALE

# (head, inputs, rows, positions) -> R compressed rows. `inputs` are the S rows of X that the keys
# are made of, `rows` the rows to compress, `positions` the indices that are not padding.
Rows = list[Tensor]
Compress = Callable[[int, Tensor, Tensor, list[int]], Rows]


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


def compress_by_matrix(matrix: Tensor, *, keep_scale: bool = True) -> Compress:
    """`linear` and `fixed`: row j is sum_i E[j, i] x_i, with E (heads, R, max_length).

    If positions are missing (padding, or an input shorter than max_length), row j is scaled by
    |E[j]| / |E[j, present]|, which keeps the variance of the sum; by MAX_SCALE if that is smaller,
    and not at all if E[j] is zero.
    """

    def compress(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        compressed = []
        for row in matrix[min(head, matrix.shape[0] - 1)]:  # row j of E
            total = torch.zeros_like(rows[0])
            for i in positions:
                total = total + row[i] * rows[i]
            if keep_scale and positions:
                total = total * _visible_scale(row, positions)
            compressed.append(total)
        return compressed

    return compress


def _visible_scale(row: Tensor, positions: list[int]) -> Tensor | float:
    """|row| / |row at positions|, at most MAX_SCALE; 1 for a row of zeros."""
    if not row.any():
        return 1.0
    if row[positions].norm() * MAX_SCALE < row.norm():
        return MAX_SCALE
    return row.norm() / row[positions].norm()


def segments_of(length: int, width: int, positions: list[int]) -> list[list[int]]:
    """The positions present in each segment of `width`; segments with none are dropped."""
    starts = range(0, length, width)
    segments = [[i for i in positions if start <= i < start + width] for start in starts]
    return [segment for segment in segments if segment]


def compress_by_filter(taps: Tensor, *, keep_scale: bool = True) -> Compress:
    """`conv`: row j is sum_t taps[t] x_(j*width + t), kernel and stride both `width`;
    taps (heads, width). An incomplete segment is scaled as in `compress_by_matrix`.
    """

    def compress(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        filter_ = taps[min(head, taps.shape[0] - 1)]
        width = filter_.shape[0]
        compressed = []
        for segment in segments_of(rows.shape[0], width, positions):
            total = torch.zeros_like(rows[0])
            for i in segment:
                total = total + filter_[i % width] * rows[i]
            if keep_scale:
                total = total * _visible_scale(filter_, [i % width for i in segment])
            compressed.append(total)
        return compressed

    return compress


def compress_by_pooling(width: int, pool: Callable[[Tensor, int], Tensor]) -> Compress:
    """`mean` (pool = torch.mean) and `max` (torch.amax) of the positions present in segment j."""
    return lambda head, inputs, rows, positions: [
        pool(rows[segment], 0) for segment in segments_of(rows.shape[0], width, positions)
    ]


def compress_by_content(maps: Tensor) -> Compress:
    """`dynamic`: row j is sum_i p_ij x_i with p_j = softmax over present i of (x_i . maps[j]);
    maps (heads, R, M).
    """

    def compress(head: int, inputs: Tensor, rows: Tensor, positions: list[int]) -> list[Tensor]:
        compressed = []
        for map_ in maps[min(head, maps.shape[0] - 1)]:
            total = torch.zeros_like(rows[0])
            if positions:
                share = torch.stack([inputs[i] @ map_ for i in positions]).softmax(0)
                for p, i in zip(share, positions, strict=True):
                    total = total + p * rows[i]
            compressed.append(total)
        return compressed

    return compress


def no_compression() -> Compress:
    """`full`: every present position stays, which is ordinary attention."""
    return lambda head, inputs, rows, positions: [rows[i] for i in positions]


def attention(
    x: Tensor,
    weights: ReferenceWeights,
    *,
    num_heads: int,
    num_kv_heads: int,
    compress_key: Compress,
    compress_value: Compress,
    compress_inputs: bool = False,
    context: Tensor | None = None,
    mask: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> tuple[Tensor, list[list[Tensor]]]:
    """Multi-head Linformer attention, by loops over samples, heads and queries.

    x (B, N, M), context (B, S, M) or None for self-attention; masks True = a real position. Output
    rows at padded queries are zero. `compress_inputs` computes (E X) W instead of
    E (X W): the same for every kind that is a matrix, another function for `max`.
    Returns the output (B, N, M) and, for each sample and head, the weights (N, R).
    """
    if context is None:
        context, context_mask = x, mask
    head_dim = weights.query.shape[0] // num_heads

    def compressed(b: int, g: int, compress: Compress, weight: Tensor, bias: Tensor | None) -> Rows:
        """The compressed keys or values of key/value head g of sample b: R rows (D)."""
        assert context is not None
        part = slice(g * head_dim, (g + 1) * head_dim)
        own = (weight[part], None if bias is None else bias[part])
        positions = present(context, context_mask, b)
        if compress_inputs:
            return [affine(row, *own) for row in compress(g, context[b], context[b], positions)]
        return compress(g, context[b], affine(context[b], *own), positions)

    outputs, all_weights = [], []
    for b in range(x.shape[0]):
        queries = set(present(x, mask, b))
        heads, sample_weights = [], []
        for h in range(num_heads):
            g = h * num_kv_heads // num_heads
            key = compressed(b, g, compress_key, weights.key, weights.key_bias)
            value = compressed(b, g, compress_value, weights.value, weights.value_bias)
            own = slice(h * head_dim, (h + 1) * head_dim)
            bias = None if weights.query_bias is None else weights.query_bias[own]
            rows, row_weights = [], []
            for i in range(x.shape[1]):
                if i not in queries or not key:
                    rows.append(torch.zeros(head_dim, dtype=x.dtype))
                    row_weights.append(torch.zeros(len(key), dtype=x.dtype))
                    continue
                query = affine(x[b, i], weights.query[own], bias)
                p = (torch.stack([query @ k_j for k_j in key]) / head_dim**0.5).softmax(0)
                rows.append(sum((p_j * v_j for p_j, v_j in zip(p, value, strict=True)), 0 * query))
                row_weights.append(p)
            heads.append(torch.stack(rows))  # (N, D)
            sample_weights.append(torch.stack(row_weights))  # (N, R)
        mixed = affine(torch.cat(heads, dim=1), weights.output, weights.output_bias)  # (N, M)
        keep = torch.tensor([[i in queries] for i in range(x.shape[1])])
        outputs.append(torch.where(keep, mixed, torch.zeros_like(mixed)))
        all_weights.append(sample_weights)
    return torch.stack(outputs), all_weights


def affine(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return rows @ weight.T if bias is None else rows @ weight.T + bias


def present(rows: Tensor, mask: Tensor | None, sample: int) -> list[int]:
    return [i for i in range(rows.shape[1]) if mask is None or bool(mask[sample, i])]
