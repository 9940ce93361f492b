"""The feed-forward part of a layer: W_2 act(W_1 x), act one of `ACTIVATIONS`."""

from __future__ import annotations

from typing import get_args

from torch import Tensor, nn

from . import checks
from .activations import ACTIVATIONS, Activation
from .cpu.feedforward import feed_forward_in_blocks
from .cpu.predicate import use_cpu_fast_path
from .dropout import dropout
from .heads import reset_linear


class FeedForward(nn.Module):
    """(B, N, dim) -> (B, N, dim), each row independent of the others.

    `dropout` is applied to the activated hidden layer. With swiglu W_1 has 2 * ff_dim rows.
    """

    def __init__(
        self,
        *,
        dim: int,
        ff_dim: int,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        checks.positive("ff_dim", ff_dim)
        checks.one_of("activation", activation, get_args(Activation))
        checks.probability("activation_dropout", dropout)
        self.activation: Activation = activation
        self.dropout = dropout
        self.w_1 = nn.Linear(dim, ff_dim * (2 if activation == "swiglu" else 1), bias=bias)
        self.w_2 = nn.Linear(ff_dim, dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        reset_linear(self.w_1, self.w_2)

    def forward(self, x: Tensor) -> Tensor:
        drop = self.dropout if self.training else 0.0
        if use_cpu_fast_path(x, self.w_1, self.w_2):
            return feed_forward_in_blocks(x, self.w_1, self.w_2, self.activation, drop)
        hidden = ACTIVATIONS[self.activation](self.w_1(x))
        return self.w_2(dropout(hidden, drop, training=self.training))
