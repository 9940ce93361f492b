"""Attention to an exact window and to compressed rows as plain loops: the oracle for
`window.py`.

Legend: N positions, R compressed rows, H heads, G key/value heads, D head size, M model size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .reference import affine, present
from .reference_pool import pooling_weights

if TYPE_CHECKING:
    from .reference import Compress, ReferenceWeights


def exact_positions(query: int, length: int, *, window: int, global_tokens: int) -> list[int]:
    """The positions that a query sees exactly: its chunk of `window` positions, the chunks before
    and after it, and the global ones. A global query sees all.
    """
    if query < global_tokens:
        return list(range(length))
    near = [i for i in range(length) if window and abs(i // window - query // window) <= 1]
    return sorted({*range(min(global_tokens, length)), *near})


def row_shares(
    rows: int, positions: list[int], exact: list[int], segment: int | None, *, counted: bool
) -> list[float]:
    """For each row, the share of the real `positions` it is made of that are not `exact`: of those
    in its segment, or, without segments, of all. Rows of segments that are `counted` give their
    number instead.
    """
    if segment is None:
        members = [positions] * rows
    else:  # segments of padding alone have no row
        occupied = sorted({i // segment for i in positions})
        members = [[i for i in positions if i // segment == j] for j in occupied]
    outside = [len([i for i in row if i not in exact]) for row in members]
    if segment is not None and counted:
        return [float(count) for count in outside]
    return [count / max(1, len(row)) for count, row in zip(outside, members, strict=True)]


def entropies(query: Tensor, inputs: Tensor, members: list[int], segment: int) -> list[Tensor]:
    """-sum_i p_i log p_i of the weights p of each segment that has members."""
    found = []
    for j in sorted({i // segment for i in members}):
        p = pooling_weights(query, inputs, [i for i in members if i // segment == j])
        found.append(-(p * p.log()).sum())
    return found


def window_attention(
    x: Tensor,
    weights: ReferenceWeights,
    *,
    num_heads: int,
    num_kv_heads: int,
    compress_key: Compress | None,
    compress_value: Compress | None,
    window: int,
    global_tokens: int,
    row_bias: Tensor | None = None,
    pool_queries: Tensor | None = None,
    segment: int | None = None,
    compress_inputs: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Self-attention of x (B, N, M), by loops over samples, heads and queries.

    In one softmax: q . k_i / sqrt(D) for each exact position i, and for each compressed row j with
    positions outside, q . k_j / sqrt(D) + log share + row_bias[h, j], see `row_shares`. Segments
    without a row_bias, (H, R or 1), are counted. Without compress_key there are no rows. Rows with
    pool_queries (1 or G, M) have no global positions, and the entropy of their weights as row_bias.
    """
    head_dim = weights.query.shape[0] // num_heads
    length = x.shape[1]
    outputs = []
    for b in range(x.shape[0]):
        positions = present(x, mask, b)
        members = positions
        if pool_queries is not None:
            members = [i for i in positions if i >= global_tokens]
        heads = []
        for h in range(num_heads):
            g = h * num_kv_heads // num_heads
            of_kv = slice(g * head_dim, (g + 1) * head_dim)
            sides = []
            for weight, bias, compress in (
                (weights.key, weights.key_bias, compress_key),
                (weights.value, weights.value_bias, compress_value),
            ):
                own = (weight[of_kv], None if bias is None else bias[of_kv])
                exact_rows, rows = affine(x[b], *own), []
                if compress is not None and compress_inputs:
                    rows = [affine(r, *own) for r in compress(g, x[b], x[b], members)]
                elif compress is not None:
                    rows = compress(g, x[b], exact_rows, members)
                sides.append((exact_rows, rows))
            (key, row_key), (value, row_value) = sides
            biases = None if row_bias is None else list(row_bias[h])
            if pool_queries is not None and segment is not None:
                query_of_rows = pool_queries[min(g, len(pool_queries) - 1)]
                biases = entropies(query_of_rows, x[b], members, segment)
            own_rows = slice(h * head_dim, (h + 1) * head_dim)
            q_bias = None if weights.query_bias is None else weights.query_bias[own_rows]
            mixed = []
            for i in range(length):
                exact = exact_positions(i, length, window=window, global_tokens=global_tokens)
                seen = [j for j in exact if j in positions]
                shares = row_shares(len(row_key), members, exact, segment, counted=biases is None)
                query = affine(x[b, i], weights.query[own_rows], q_bias)
                scores = [query @ key[j] / head_dim**0.5 for j in seen]
                values = [value[j] for j in seen]
                for j, share in enumerate(shares):
                    if share > 0:
                        extra: Tensor | float = math.log(share)
                        if biases is not None:
                            extra = extra + biases[min(j, len(biases) - 1)]
                        scores.append(query @ row_key[j] / head_dim**0.5 + extra)
                        values.append(row_value[j])
                if i not in positions or not scores:
                    mixed.append(torch.zeros(head_dim, dtype=x.dtype))
                    continue
                p = torch.stack(scores).softmax(0)
                mixed.append((p[:, None] * torch.stack(values)).sum(0))
            heads.append(torch.stack(mixed))  # (N, D)
        joined = affine(torch.cat(heads, dim=1), weights.output, weights.output_bias)
        keep = torch.tensor([[i in positions] for i in range(length)])
        outputs.append(torch.where(keep, joined, torch.zeros_like(joined)))
    return torch.stack(outputs)
