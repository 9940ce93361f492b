"""Scaled dot-product attention on the fused kernel, with derivatives of every order.

PyTorch's fused CPU kernel can be differentiated once, in reverse mode. `sdpa` adds what it lacks:
where a gradient of the gradient, forward mode or a transform of torch.func is wanted, the same
function is computed by matrix products and a softmax. Elsewhere the kernel is all that runs.

This is the only file that uses the private operators of the CPU kernel. Where a version of PyTorch
does not have them, `scaled_dot_product_attention` is called, which has no second derivative then.

Legend: B batch, N queries, L keys, H heads, G key/value heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from .fastpath import eager_on_cpu, needs_plain_backward, plain_gradients, under_transform
from .weights import attention_weights, for_each_head

# What scaled_dot_product_attention calls on a CPU. None if this version of PyTorch lacks them.
_FORWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
HAS_FLASH = _FORWARD is not None and _BACKWARD is not None
FLASH_FORWARD: Any = _FORWARD.default if _FORWARD is not None else None
FLASH_BACKWARD: Any = _BACKWARD.default if _BACKWARD is not None else None


def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    drop: float = 0.0,
) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V: query (B, H, N, D), key and value (B, G, L, D) -> (B, H, N, D).

    mask broadcasts to (B, H, N, L), True = visible. `drop` is the rate at which single weights are
    dropped, for which the kernel cannot be used.
    """
    if under_transform():
        return plain_sdpa(query, key, value, mask=mask, causal=causal, drop=drop)
    if torch.is_grad_enabled() and eager_on_cpu(query) and not drop:
        if torch.is_autocast_enabled("cpu") and query.dtype != torch.float64:
            # As autocast does for scaled_dot_product_attention.
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if _uses_flash(query, key, value, mask, causal):
            return _flash(query, key, value, mask, causal)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=causal,
        dropout_p=drop,
        enable_gqa=key.shape[1] != query.shape[1],
    )


def plain_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    drop: float = 0.0,
) -> Tensor:
    """The same by ordinary operations. The weights (B, H, N, L) are materialised."""
    if causal:
        shape = query.shape[-2], key.shape[-2]
        mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    weights = attention_weights(query, key, mask)
    if drop:
        weights = F.dropout(weights, drop)
    return weights @ for_each_head(value, query.shape[-3])


def _uses_flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
) -> bool:
    """Whether PyTorch would use the fused CPU kernel, by its own rule."""
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


def _flash(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    hidden = None
    if mask is not None:
        hidden = torch.where(mask, query.new_zeros(()), query.new_full((), float("-inf")))
    result: Tensor = _Flash.apply(query, key, value, hidden, causal)
    return result


class _Flash(torch.autograd.Function):
    """The fused kernel with a backward pass that can be differentiated.

    `hidden` is added to the scores: -inf where a key is hidden, else 0.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None, causal: bool
    ) -> Tensor:
        result, logsumexp = FLASH_FORWARD(query, key, value, 0.0, causal, attn_mask=hidden)
        ctx.causal = causal
        ctx.save_for_backward(query, key, value, hidden, result, logsumexp)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, hidden, result, logsumexp = ctx.saved_tensors
        if needs_plain_backward(grads[0]):
            mask = None if hidden is None else hidden == 0
            return plain_gradients(
                lambda *rows: plain_sdpa(*rows, mask=mask, causal=ctx.causal),
                (query, key, value),
                grads[0],
                ctx.needs_input_grad,
            )
        of_inputs = FLASH_BACKWARD(
            grads[0], query, key, value, result, logsumexp, 0.0, ctx.causal, attn_mask=hidden
        )
        return (*of_inputs, None, None)
