"""Swapped attention inside Hugging Face models, by transformers' own interface.

An attention module of transformers computes queries, keys and values, and passes them to the
function that `config._attn_implementation` names. The two implementations registered here compute
Linformer attention for modules that have a child `linformer`, and for all others what the
implementation they extend does. Their masks of padding are (B, N), where sdpa's are (B, 1, N, N).

`model.set_attn_implementation("sdpa")` switches back to exact attention.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function

from ..core.plain_sdpa import hidden_bias
from .swapped import CHILD, SwappedAttention, visible_keys

if TYPE_CHECKING:
    from torch import Tensor, nn

PREFIX = "linformer_"
BASES = ("sdpa", "eager")
# Arguments that change the scores, or which keys are seen.
UNSUPPORTED = (
    "position_bias",
    "sliding_window",
    "softcap",
    "s_aux",
    "indices",
    "block_indices",
    "cu_seq_lens_q",
    "cache",
)


class DispatchedAttention(SwappedAttention):
    """A SwappedAttention that transformers calls. Unpickling it imports this file, which registers
    the implementations.
    """


def use_dispatch(module: nn.Module) -> None:
    """Let the config of an attention module name an implementation of this file."""
    config: Any = module.config
    current = config._attn_implementation
    if not str(current).startswith(PREFIX):
        config._attn_implementation = PREFIX + (current if current in BASES else "sdpa")


class _Implementation:
    """Linformer attention where it is swapped in, `base` elsewhere."""

    def __init__(self, base: str) -> None:
        self.base = base

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """query (B, H, N, D), key and value (B, G, L, D) -> (B, N, H, D), and the weights of `base`
        if it returns them.
        """
        child = getattr(module, CHILD, None)
        if child is not None:
            return _linformer(module, child, query, key, value, attention_mask, **options), None
        if attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = attention_mask[:, None, None]
            if self.base == "eager":
                attention_mask = hidden_bias(attention_mask, query.dtype)
        if self.base == "eager":
            base = sys.modules[type(module).__module__].eager_attention_forward
        else:
            base = AttentionInterface()[self.base]
        return base(module, query, key, value, attention_mask, **options)

    def mask(self, **options: Any) -> Tensor | None:
        """(B, N), True = a real position, for attention in both directions to the input itself."""
        plain = (
            options.get("mask_function") is bidirectional_mask_function
            and options.get("allow_is_bidirectional_skip")
            and options["q_length"] == options["kv_length"]
        )
        if not plain:
            return AttentionMaskInterface()[self.base](**options)
        mask = options.get("attention_mask")
        if mask is None or (not torch.compiler.is_compiling() and bool(mask.all())):
            return None
        return mask.bool()


def _linformer(
    module: nn.Module,
    child: SwappedAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: Any,
) -> Tensor:
    unsupported = [name for name in UNSUPPORTED if options.get(name) is not None]
    if is_causal:
        unsupported.append("is_causal")
    if query.shape[2] != key.shape[2]:
        unsupported.append(f"{query.shape[2]} queries and {key.shape[2]} keys")
    if unsupported:
        raise ValueError(
            f"{type(module).__name__} cannot be linformerized: it was called with "
            f"{', '.join(unsupported)}. Name it in keep_full."
        )
    size = query.shape[3]
    if scaling is not None and not math.isclose(scaling * size**0.5, 1.0):
        query = query * (scaling * size**0.5)  # the scores are divided by sqrt(D)
    if mask is not None:
        mask = visible_keys(mask).expand(query.shape[0], -1)
    heads = (rows.transpose(1, 2) for rows in (query, key, value))
    return child(*heads, mask, drop=dropout)


for _base in BASES:
    AttentionInterface.register(PREFIX + _base, _Implementation(_base).attend)
    AttentionMaskInterface.register(PREFIX + _base, _Implementation(_base).mask)
