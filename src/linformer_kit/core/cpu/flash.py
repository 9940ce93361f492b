"""PyTorch's fused CPU attention kernel, with a backward pass that can be differentiated.

This is the only file that uses the private operators of the kernel. Where a version of PyTorch does
not have them, `F.scaled_dot_product_attention` is called, which then has no second derivative.

Legend: B batch, N queries, L keys, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from ..plain_sdpa import plain_sdpa
from .predicate import needs_plain_backward, plain_gradients

# The operators that scaled_dot_product_attention calls on a CPU; None where they do not exist.
_FORWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
HAS_FLASH = _FORWARD is not None and _BACKWARD is not None
FLASH_FORWARD: Any = _FORWARD.default if _FORWARD is not None else None
FLASH_BACKWARD: Any = _BACKWARD.default if _BACKWARD is not None else None


def uses_flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> bool:
    """Whether PyTorch would choose the fused CPU kernel for these tensors."""
    if not HAS_FLASH:
        return False
    choice = torch._fused_sdp_choice(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return choice == SDPBackend.FLASH_ATTENTION.value


def flash_with_second_derivative(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
) -> Tensor:
    """The fused kernel: query (B, H, N, D), key and value (B, G, L, D) -> (B, H, N, D)."""
    if mask is not None:
        bias = torch.where(mask, query.new_zeros(()), query.new_full((), float("-inf")))
    result: Tensor = _Flash.apply(query, key, value, bias, causal)
    return result


class _Flash(torch.autograd.Function):
    """`bias` is added to the scores; -inf hides a key. It has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, causal: bool
    ) -> Tensor:
        result, logsumexp = FLASH_FORWARD(query, key, value, 0.0, causal, attn_mask=bias)
        ctx.causal = causal
        ctx.save_for_backward(query, key, value, bias, result, logsumexp)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, result, logsumexp = ctx.saved_tensors
        if needs_plain_backward(grads[0]):
            mask = None if bias is None else bias > float("-inf")
            shown = None if mask is None else bias.masked_fill(~mask, 0.0)
            return plain_gradients(
                lambda *rows: plain_sdpa(*rows, mask=mask, bias=shown, causal=ctx.causal),
                (query, key, value),
                grads[0],
                ctx.needs_input_grad,
            )
        of_inputs = FLASH_BACKWARD(
            grads[0], query, key, value, result, logsumexp, 0.0, ctx.causal, attn_mask=bias
        )
        return (*of_inputs, None, None)
