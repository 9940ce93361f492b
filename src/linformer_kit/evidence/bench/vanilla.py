"""The Transformer of 2020: attention that materialises all n x n scores.

As in BERT and fairseq: scores, a scaled copy, their softmax, and the product with the values, each
a tensor of its own. Pre-norm with a final norm, as the encoders it is compared with.

Legend: B batch, N positions, H heads, D head size, M model size.
"""

from __future__ import annotations

import math

from torch import Tensor, nn


class MaterialisedLayer(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, *, dim: int, num_heads: int, ff_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.feed_forward_norm = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(nn.Linear(dim, ff_dim), nn.GELU(), nn.Linear(ff_dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.attention_norm(x))
        fed: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return x + fed

    def attend(self, x: Tensor) -> Tensor:
        """(B, N, M) -> (B, N, M)"""

        def heads(linear: nn.Linear) -> Tensor:
            return linear(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, N, D)

        query, key, value = heads(self.query), heads(self.key), heads(self.value)
        scores = query @ key.transpose(-1, -2)  # (B, H, N, N)
        scores = scores / math.sqrt(query.shape[-1])
        weights = scores.softmax(-1)
        del scores
        mixed = (weights @ value).transpose(1, 2).flatten(2)  # (B, N, M)
        out: Tensor = self.out(mixed)
        return out


class MaterialisedEncoder(nn.Module):
    """A stack of such layers and a norm: (B, N, dim) -> (B, N, dim)."""

    def __init__(self, *, dim: int, depth: int, num_heads: int, ff_dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            MaterialisedLayer(dim=dim, num_heads=num_heads, ff_dim=ff_dim) for _ in range(depth)
        )
        self.final_norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        normed: Tensor = self.final_norm(x)
        return normed


def materialised_bytes(*, batch: int, length: int, num_heads: int, itemsize: int = 4) -> int:
    """What the scores and their copy take at the peak of a forward pass."""
    return 2 * batch * num_heads * length * length * itemsize
