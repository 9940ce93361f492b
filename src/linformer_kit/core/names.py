"""Argument names of other libraries, and what they are called here.

A constructor or a call that gets an argument it does not have raises a TypeError. If the name is
known from another library, the error says which name to use here.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch import nn

# The core's arguments that have another name in LinformerConfig.
CONFIG_NAMES = {
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "ff_dim": "intermediate_size",
    "activation": "hidden_act",
    "max_length": "max_position_embeddings",
    "attention": "causal_attention",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "positions": "position_embedding_type",
    "norm_eps": "layer_norm_eps",
}

# Library -> its name -> the argument here, in braces by its name in the core.
EQUIVALENT = {
    "linformer-pytorch": {
        "input_size": "{max_length}",
        "channels": "{dim}",
        "dim_k": "{k}",
        "dim_ff": "{ff_dim}",
        "dim_d": "{head_dim}",
        "nhead": "{num_heads}",
        "dropout_ff": "{activation_dropout}",
        "dropout_tokens": "{dropout}",
        "parameter_sharing": "{sharing}",
        "k_reduce_by_layer": "{k} with one number for each layer",
        "full_attention": "{projection}='full'",
        "method": (
            "{projection} ('learnable' is 'linear', 'convolution' is 'conv', 'no_params' is "
            "'fixed')"
        ),
        "checkpoint_level": "{gradient_checkpointing}=True",
        "emb_dim": "{dim}",
        "num_tokens": "vocab_size of LinformerConfig",
        "causal": "LinformerDecoder",
        "decoder_mode": "LinformerDecoder with cross_attention=True",
        "input_mask": "{mask} (True = a real position)",
    },
    "linformer": {
        "seq_len": "{max_length}",
        "heads": "{num_heads}",
        "dim_head": "{head_dim}",
        "one_kv_head": "{num_kv_heads}=1",
        "share_kv": "{sharing}='kv' (one matrix E = F; keys and values stay apart)",
        "num_tokens": "vocab_size of LinformerConfig",
    },
    "torch.nn": {
        "d_model": "{dim}",
        "embed_dim": "{dim}",
        "nhead": "{num_heads}",
        "num_layers": "{depth}",
        "dim_feedforward": "{ff_dim}",
        "layer_norm_eps": "{norm_eps}",
        "norm_first": "{norm} ('pre' for True, 'post' for False)",
        "kdim": "{context_dim}",
        "vdim": "{context_dim}",
        "src": "{x}",
        "tgt": "{x}",
        "query": "{x}",
        "key": "{context}",
        "memory": "{context}",
        "src_key_padding_mask": "{mask}, inverted (True = a real position)",
        "tgt_key_padding_mask": "{mask}, inverted (True = a real position)",
        "key_padding_mask": "{mask}, inverted (True = a real position)",
        "memory_key_padding_mask": "{context_mask}, inverted (True = a real position)",
        "is_causal": "LinformerDecoder",
    },
    "transformers": {
        "attention_mask": "{mask}, boolean (attention_mask.bool())",
        "encoder_hidden_states": "{context}",
        "encoder_attention_mask": "{context_mask}, boolean",
        "hidden_states": "{x}",
        "inputs_embeds": "{x}",
    },
    "LinformerConfig": {ours: f"{{{core}}}" for core, ours in CONFIG_NAMES.items()},
}

# Library -> its name -> why there is none here.
ABSENT = {
    "linformer-pytorch": {
        "include_ff": "every layer has a feed-forward part",
        "ff_intermediate": "every layer has the same width",
        "w_o_intermediate_dim": "W_o is one matrix",
        "return_emb": "LinformerModel returns the hidden states",
        "context_emb": "build a LinformerDecoder with cross_attention=True and pass context",
    },
    "linformer": {
        "reversible": "gradient_checkpointing=True saves memory instead",
    },
    "torch.nn": {
        "batch_first": (
            "inputs are always (batch, length, dim); transpose them, or use "
            "linformer_kit.TransformerEncoderAdapter"
        ),
        "enable_nested_tensor": "padding is skipped through the mask",
        "mask_check": "every mask is checked",
        "src_mask": "an attention mask for each pair of positions cannot be compressed",
        "tgt_mask": "LinformerDecoder is always causal",
        "attn_mask": "an attention mask for each pair of positions cannot be compressed",
        "memory_mask": "an attention mask for each pair of positions cannot be compressed",
        "need_weights": "call weights() or trace()",
        "add_bias_kv": "keys have no row of their own",
        "add_zero_attn": "keys have no row of their own",
        "device": "call .to(device), or build inside `with torch.device(device)`",
        "dtype": "call .to(dtype)",
    },
}

Class = TypeVar("Class", bound="type[nn.Module]")


def unknown_names(
    owner: str,
    given: Collection[str],
    known: Collection[str],
    *,
    renamed: Mapping[str, str] | None = None,
) -> str:
    """The error for arguments that `owner` does not have, with the name here of each.

    `known` are the arguments it has; `renamed` maps the core's names to its own.
    """
    listed = ", ".join(map(repr, given))
    reasons = [_hint(owner, name, known, renamed or {}) for name in given]
    hints = " ".join(dict.fromkeys(reason for reason in reasons if reason))
    plural = "s" if len(given) > 1 else ""
    return f"{owner} got unexpected argument{plural} {listed}. {hints}".rstrip()


def explain_unknown_names(cls: Class) -> Class:
    """Class decorator: __init__ and forward explain an argument that they do not have."""
    cls.__init__ = _explained(cls.__init__, cls.__name__)  # type: ignore[method-assign]
    cls.forward = _explained(cls.forward, f"{cls.__name__}.forward")
    return cls


def _explained(function: Callable[..., Any], owner: str) -> Callable[..., Any]:
    known = frozenset(inspect.signature(function).parameters) - {"self"}

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        if not known.issuperset(options):
            unknown = [name for name in options if name not in known]
            raise TypeError(unknown_names(owner, unknown, sorted(known)))
        return function(*arguments, **options)

    return checked


def _hint(owner: str, name: str, known: Collection[str], renamed: Mapping[str, str]) -> str:
    """One sentence about one name, or nothing."""
    answers: dict[str, list[str]] = {}
    for library, names in EQUIVALENT.items():
        if name in names and (answer := _equivalent(owner, name, names[name], known, renamed)):
            answers.setdefault(answer, []).append(library)
    if name in renamed and renamed[name] in known:
        answers.setdefault(f"is {renamed[name]} here", []).append("the core")
    for library, names in ABSENT.items():
        if name in names:
            answers.setdefault(f"has no equivalent here: {names[name]}", []).append(library)
    if answers:
        answer, libraries = next(iter(answers.items()))
        owners = " and ".join(
            f"{library}'{'' if library.endswith('s') else 's'}" for library in libraries
        )
        return f"{owners} {name} {answer}."
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else ""


def _equivalent(
    owner: str, name: str, template: str, known: Collection[str], renamed: Mapping[str, str]
) -> str:
    core = re.findall(r"{(\w+)}", template)
    ours = {argument: renamed.get(argument, argument) for argument in core}
    if name in ours.values():
        return ""  # it is called the same here, and this class does not have it
    text = f"is {template.format(**ours)} here"
    missing = [argument for argument in ours.values() if argument not in known]
    return f"{text}, which {owner} does not have" if missing else text
