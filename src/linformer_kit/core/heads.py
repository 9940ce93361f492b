"""Multi-head attention: sizes of heads, linear layers, rotary positions.

Legend: B batch, N queries, L keys, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor, nn

from . import checks
from .cpu.linear import apply_linear
from .dropout import drop_rows
from .rotary import check_rotary, rotate
from .sdpa import sdpa


class HeadOptions(TypedDict):
    """The options that all attention layers of a model share."""

    dim: int
    num_heads: int
    head_dim: int | None
    num_kv_heads: int | None
    bias: bool
    out_bias: bool
    dropout: float


def check_heads(
    dim: int, num_heads: int, head_dim: int | None, num_kv_heads: int | None
) -> tuple[int, int]:
    """(head_dim, num_kv_heads) with their defaults."""
    checks.positive("dim", dim)
    checks.positive("num_heads", num_heads)
    if head_dim is None:
        if dim % num_heads:
            raise ValueError(
                f"dim must be divisible by num_heads: got dim={dim}, num_heads={num_heads}. "
                "Change one of them, or give head_dim."
            )
        head_dim = dim // num_heads
    checks.positive("head_dim", head_dim)
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    checks.positive("num_kv_heads", num_kv_heads)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"num_heads must be divisible by num_kv_heads: got num_heads={num_heads}, "
            f"num_kv_heads={num_kv_heads}. Use a divisor of num_heads, 1 for a single one."
        )
    return head_dim, num_kv_heads


def reset_linear(*linears: nn.Linear) -> None:
    """Xavier weights and zero biases."""
    for linear in linears:
        nn.init.xavier_uniform_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def reset_children(module: nn.Module) -> None:
    """Initialise all parameters again, as after `to_empty`; the method of modules made of others.

    Call it on the outermost module only: a module decides how those inside it are initialised.
    """
    for child in module.children():
        reset = getattr(child, "reset_parameters", None)
        if callable(reset):
            reset()
        else:
            reset_children(child)


class RotaryHeads(nn.Module):
    """Base of the causal attentions: four linear layers and rotary positions."""

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        head_dim: int | None,
        num_kv_heads: int | None,
        bias: bool,
        out_bias: bool | None,
        rotary: float,
        dropout: float,
    ) -> None:
        super().__init__()
        checks.probability("dropout", dropout)
        head_dim, num_kv_heads = check_heads(dim, num_heads, head_dim, num_kv_heads)
        self.dim = dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.rotary_dim = check_rotary(head_dim, rotary)
        self.dropout = dropout
        self.q_proj = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, num_kv_heads * head_dim, bias=bias)
        out_bias = bias if out_bias is None else out_bias
        self.out_proj = nn.Linear(num_heads * head_dim, dim, bias=out_bias)

    def reset_parameters(self) -> None:
        reset_linear(self.q_proj, self.k_proj, self.v_proj, self.out_proj)

    def rotated_heads(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries (B, N, H, D), keys, keys before rotation, values (B, N, G, D)."""
        query = apply_linear(self.q_proj, x).unflatten(2, (self.num_heads, self.head_dim))
        plain_key = apply_linear(self.k_proj, x).unflatten(2, (self.num_kv_heads, self.head_dim))
        value = apply_linear(self.v_proj, x).unflatten(2, (self.num_kv_heads, self.head_dim))
        query = rotate(query, position, self.rotary_dim)
        return query, rotate(plain_key, position, self.rotary_dim), plain_key, value

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        drop = self.dropout if self.training else 0.0
        return attend(query, key, value, mask=mask, causal=causal, drop=drop)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    drop: float = 0.0,
) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V on the fused kernel.

    query (B, N, H, D), key and value (B, L, G, D) -> (B, N, H, D). mask broadcasts to (B, H, N, L),
    True = visible. `drop` is the rate at which a value is dropped for all queries of a sample and
    key/value head, which keeps the expectation and the fused kernel.
    """
    value = drop_rows(value, drop, training=True)
    query, key, value = (rows.transpose(1, 2) for rows in (query, key, value))
    return sdpa(query, key, value, mask=mask, causal=causal).transpose(1, 2)
