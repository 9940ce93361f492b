"""Which modules of a model are attention, and which of them `linformerize` can swap.

Attention that cannot be compressed is left alone: causal, cross- and local attention, and attention
whose scores depend on pairs of positions. The rules are tables of names as far as they can be; what
they do not know is refused when the model is called, see `dispatch.py`.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from .swapped import CHILD, LinformerMultiheadAttention, SwappedAttention

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPPORTED = (
    "nn.MultiheadAttention (and so nn.TransformerEncoder) and the attention of Hugging Face models "
    "that use transformers' attention interface, such as BERT, RoBERTa, ESM, ViT, DeiT, DINOv2, "
    "CLIP, SigLIP, Whisper, wav2vec 2.0 and HuBERT"
)
CAUSAL = "causal attention"
CROSS = "cross-attention"
POSITION_PAIRS = "its scores depend on relative positions"
LOCAL = "local attention already"

# (pattern of a class or of a module's name, reason)
CLASS_NAMES = ((r"Cross|Pool|Perceiver|Resampler", CROSS), (r"Windowed|Swin", LOCAL))
MODULE_NAMES = ((r"cross|encoder_attn|enc_attn|multihead_attn", CROSS),)
PARENT_NAMES = ((r"Pool", CROSS),)
# Attributes of an attention module that are set, and the reason to leave it alone.
ATTRIBUTES = (
    ("is_causal", CAUSAL),
    ("is_decoder", CAUSAL + " or cross-attention of a decoder"),
    ("is_cross_attention", CROSS),
    ("sliding_window", LOCAL),
    ("add_zero_attn", "add_zero_attn is set"),
    ("bias_k", "add_bias_kv is set"),
    ("sequence_reduction", "its keys are shortened already"),
    ("query_stride", "it has fewer queries than keys"),
)
RELATIVE = r"relative|rel_pos|position_bias|pos_bias|distance_embedding"
INTERFACE = frozenset({"ALL_ATTENTION_FUNCTIONS"})
CAUSAL_MASKS = frozenset({"create_causal_mask", "create_sliding_window_causal_mask"})
OPEN_MASKS = frozenset({"create_bidirectional_mask", "create_bidirectional_sliding_window_mask"})
HEADS = ("num_heads", "num_attention_heads", "n_heads", "num_attn_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads")
HEAD_SIZES = ("head_dim", "attention_head_size", "d_head")
WIDTHS = ("embed_dim", "hidden_size", "d_model", "dim")


@dataclass(frozen=True)
class Candidate:
    """An attention module; `why_not` is None if it can be swapped."""

    name: str
    module: nn.Module
    why_not: str | None

    @property
    def swapped(self) -> bool:
        return isinstance(getattr(self.module, CHILD, None), SwappedAttention)


def attentions(model: nn.Module) -> list[Candidate]:
    """Every attention module of a model, in its order; one that is used twice is listed once."""
    parents: dict[nn.Module, list[tuple[str, nn.Module]]] = {}
    found = []
    for name, module, above in _walk(model):
        if module in parents:
            continue
        parents[module] = above
        if _is_attention(module):
            found.append(Candidate(name, module, _reason(name, module, above)))
    inner = {m for c in found for _, m in parents[c.module]}  # a module that contains attention
    return [c for c in found if c.module not in inner]


def heads_of(module: nn.Module) -> tuple[int, int]:
    """H and G of an attention module; 0, 0 if it does not tell."""
    heads, kv = (_whole_number(module, names) or 0 for names in (HEADS, KV_HEADS))
    groups = getattr(module, "num_key_value_groups", None)
    return heads, heads // groups if groups else (kv or heads)


def head_size_of(module: nn.Module) -> int:
    """D of an attention module; 0 if it does not tell."""
    for names, parts in ((HEAD_SIZES, 1), (WIDTHS, heads_of(module)[0])):
        size = _whole_number(module, names)
        if size is not None:
            return size // parts
    return 0


def _whole_number(module: nn.Module, names: tuple[str, ...]) -> int | None:
    """The first of these attributes of a module, or of its config, that is one number above 0; a
    config may have one for each stage, or refuse to give one for all layers.
    """
    for place in (module, getattr(module, "config", None)):
        for name in names:
            try:
                found = getattr(place, name, None)
            except Exception:  # of transformers, for a number that differs between layers
                continue
            if isinstance(found, int) and found > 0:
                return found
    return None


def _walk(
    module: nn.Module, name: str = "", above: list[tuple[str, nn.Module]] | None = None
) -> Iterator[tuple[str, nn.Module, list[tuple[str, nn.Module]]]]:
    """(name, module, its ancestors from the root down)"""
    above = above or []
    yield name, module, above
    for child_name, child in module.named_children():
        if not isinstance(child, SwappedAttention):
            path = f"{name}.{child_name}" if name else child_name
            yield from _walk(child, path, [*above, (name, module)])


def _is_attention(module: nn.Module) -> bool:
    named = "Attention" in type(module).__name__ and next(module.parameters(), None) is not None
    return named or isinstance(module, nn.MultiheadAttention) or uses(type(module), INTERFACE)


def _reason(name: str, module: nn.Module, above: list[tuple[str, nn.Module]]) -> str | None:
    """Why an attention is left alone; None if it can be swapped."""
    kind = type(module)
    if isinstance(module, nn.MultiheadAttention):
        return _reason_torch(name, module, above)
    if not uses(kind, INTERFACE):
        return "its code does not use an attention interface that can be swapped"
    if not hasattr(module, "config"):
        return "it has no config that names its attention function"
    named = _by_name(name, module, above)
    if named is not None:
        return named
    names = {each for each, _ in (*module.named_parameters(), *module.named_modules())}
    names |= set(inspect.signature(kind.forward).parameters)
    names |= {child for _, around in above for child, _ in around.named_children()}
    if any(re.search(RELATIVE, each) for each in names):
        return POSITION_PAIRS
    if not heads_of(module)[0]:
        return "it does not tell its number of heads"
    return _reason_masks(module, above)


def _reason_torch(
    name: str, module: nn.MultiheadAttention, above: list[tuple[str, nn.Module]]
) -> str | None:
    if type(module) not in (nn.MultiheadAttention, LinformerMultiheadAttention):
        return "a subclass of nn.MultiheadAttention may compute something else"
    if above and isinstance(above[-1][1], nn.TransformerDecoderLayer):
        return CROSS if name.endswith("multihead_attn") else CAUSAL
    if not module._qkv_same_embed_dim:
        return f"{CROSS} (kdim or vdim is not embed_dim)"
    return _by_name(name, module, above)


def _by_name(name: str, module: nn.Module, above: list[tuple[str, nn.Module]]) -> str | None:
    parent = type(above[-1][1]).__name__ if above else ""
    last = ".".join(name.split(".")[-2:])
    for patterns, text in (
        (CLASS_NAMES, type(module).__name__),
        (PARENT_NAMES, parent),
        (MODULE_NAMES, last),
    ):
        for pattern, why in patterns:
            if re.search(pattern, text):
                return why
    for attribute, why in ATTRIBUTES:
        value = getattr(module, attribute, None)
        if value is not None and value is not False:
            return why
    return None


def _reason_masks(attention: nn.Module, above: list[tuple[str, nn.Module]]) -> str | None:
    """Causal if the nearest module around it that makes masks makes causal ones only, as CLIP's
    text tower does. If it makes both, its attention modules tell which they are.
    """
    for _, module in reversed(above):
        if getattr(module, "config", None) is not attention.config:
            continue
        causal, bidirectional = (uses(type(module), each) for each in (CAUSAL_MASKS, OPEN_MASKS))
        if causal or bidirectional:
            only_causal = not bidirectional and getattr(attention.config, "is_causal", True)
            return CAUSAL if only_causal else None
    return None


def uses(kind: type, names: frozenset[str]) -> bool:
    """Whether the code of a class, apart from what every model inherits, uses one of the names."""
    for base in kind.__mro__:
        library = base.__module__.startswith(("torch.", "builtins", "transformers."))
        if library and not base.__module__.startswith("transformers.models."):
            continue
        for value in vars(base).values():
            code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
            if code is not None and names & set(code.co_names):
                return True
    return False
