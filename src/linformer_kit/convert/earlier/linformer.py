"""`linformer` 0.2.3 (lucidrains): Linformer, LinformerLM and LinformerSelfAttention.

Pre-norm without a final norm; one E and one F for the heads of a layer; no bias in W_q, W_k, W_v.
Its `share_kv` uses the compressed keys as values: here W_v and F then are copies of W_k and E.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from ..family import expand
from . import checkpoint as common

if TYPE_CHECKING:
    from ..family import Table

PACKAGE = "linformer"
ATTENTION: Table = {
    "q_proj.weight": "to_q.weight",
    "k_proj.weight": "to_k.weight",
    "v_proj.weight": "to_v.weight",
    "out_proj.*": "to_out.*",
}
KEY_ONLY: Table = ATTENTION | {"v_proj.weight": "to_k.weight"}  # share_kv
LAYER: Table = {
    "encoder.layers.{i}.attention_norm.*": "net.layers.{i}.0.norm.*",
    "encoder.layers.{i}.feed_forward_norm.*": "net.layers.{i}.1.norm.*",
    "encoder.layers.{i}.feed_forward.w_1.*": "net.layers.{i}.1.fn.w1.*",
    "encoder.layers.{i}.feed_forward.w_2.*": "net.layers.{i}.1.fn.w2.*",
}
LM: Table = {
    "embeddings.embed_tokens.weight": "token_emb.weight",
    "embeddings.positions.weight": "pos_emb.weight",
    "lm_head.*": "to_logits.*",
}
VALUES: dict[str, Any] = common.COMMON | {
    "norm": "pre",
    "final_norm": False,
    "qkv_bias": False,
    "hidden_act": "gelu",
    "projection": "linear",
}
# What an encoder must be to be expressed there.
ALLOWED = {
    "norm": ("pre",),
    "norm_eps": (1e-5,),
    "final_norm": (False,),
    "activation": ("gelu",),
    "bias": (True,),
    "positions": ("none",),
    "neighbours": (0,),
    "projection": ("linear", "fixed"),
    "window": (0,),
    "global_tokens": (0,),
}


def from_linformer(source: common.Source, *, heads: int | None = None, prefix: str = "") -> Any:
    """Their module, its state dict or a checkpoint of it, as ours with equal outputs.

    Linformer becomes LinformerEncoder, LinformerLM a LinformerForMaskedLM without a layer before
    the words, and LinformerSelfAttention LinformerAttention.

    Args:
        heads: their `heads`, which a state dict does not have; not needed with one_kv_head.
        prefix: of the names of the Linformer inside a larger model, such as "transformer.".

    """
    return converted(source, heads=heads, prefix=prefix).module()


def converted(
    source: common.Source, *, heads: int | None = None, prefix: str = ""
) -> common.Converted:
    if heads is None and isinstance(source, nn.Module):
        heads = next((int(m.heads) for m in source.modules() if hasattr(m, "to_q")), None)
    tensors = common.Checkpoint(source, package=PACKAGE, prefix=prefix)
    if any(".blocks.0.f.net." in f".{name}" for name in tensors.tensors):
        raise UserError(
            "linformer models with reversible=True have two streams, which no model here has: got "
            "net.blocks. Train with reversible=False, or with gradient checkpointing here."
        )
    if "to_q.weight" in tensors:
        found, matrix = _attention(tensors, "")
        values, weights = common.projection_values([matrix])
        weight = weights["encoder.layers.0.attention.projection.weight"]
        kind, result = "attention", found | {"projection.weight": weight}
    else:
        lm = "token_emb.weight" in tensors
        before = "linformer." if lm else ""
        depth = max(1, tensors.count(before + "net.layers.{}.0.fn.to_q.weight"))
        layers = {ours: before + theirs for ours, theirs in LAYER.items()}
        result = tensors.take_table(layers, layers=depth)
        matrices = []
        for i in range(depth):
            found, matrix = _attention(tensors, f"{before}net.layers.{i}.0.fn.")
            result |= {f"encoder.layers.{i}.attention.{name}": t for name, t in found.items()}
            matrices.append(matrix)
        values, weights = common.projection_values(matrices)
        kind, result = "encoder", result | weights
        values |= {
            "num_hidden_layers": depth,
            "intermediate_size": result["encoder.layers.0.feed_forward.w_1.weight"].shape[0],
        }
        if lm:
            kind, result = "masked_lm", result | tensors.take_table(LM)
            values |= {
                "vocab_size": result["lm_head.bias"].shape[0],
                "position_embedding_type": "learned",
                "tie_word_embeddings": False,
                "lm_transform": False,
            }
    tensors.check_all_read()
    values |= VALUES | _head_values(found, heads)
    return common.Converted(kind=kind, values=values, tensors=result)  # type: ignore[arg-type]


def _attention(tensors: common.Checkpoint, prefix: str) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of one attention layer, and its E and F (2, 1, K, N)."""
    table = ATTENTION if f"{prefix}to_v.weight" in tensors else KEY_ONLY
    found = tensors.take_table({ours: prefix + theirs for ours, theirs in table.items()})
    sides = ("proj_k", "proj_v" if table is ATTENTION else "proj_k")
    matrix = torch.stack([tensors.take(prefix + side).T for side in sides])
    return found, matrix[:, None]


def _head_values(attention: dict[str, Tensor], heads: int | None) -> dict[str, Any]:
    inner, dim = attention["q_proj.weight"].shape
    kv_inner = attention["k_proj.weight"].shape[0]
    if heads is None:
        if kv_inner == inner:
            raise UserError(
                "a state dict of linformer does not have the number of heads: got heads=None. Pass "
                "the heads that the model was built with (8 unless you chose another)."
            )
        heads = inner // kv_inner
    if heads < 1 or inner % heads or kv_inner not in (inner, inner // heads):
        raise UserError(
            f"heads must divide the {inner} rows of to_q, and to_k must have as many or those of "
            f"one head: got heads={heads} and {kv_inner} rows."
        )
    return {
        "hidden_size": dim,
        "num_attention_heads": heads,
        "head_dim": inner // heads,
        "num_key_value_heads": heads if kv_inner == inner else 1,
    }


def to_linformer(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of their class, and its state dict, with the outputs of a model of ours.

    Of LinformerEncoder for `Linformer`, of LinformerForMaskedLM for `LinformerLM`. What they cannot
    express is refused.
    """
    lm, encoder = common.encoder_of(model)
    settings = common.settings_of(encoder)
    heads, depth = settings["num_heads"], settings["depth"]
    allowed = ALLOWED | {
        "ff_dim": (4 * settings["dim"],),
        "num_kv_heads": (1, heads),
        "k": ([settings["k"][0]] * depth,),
    }
    common.check_settings(settings, allowed, package=PACKAGE)
    own, before = encoder.state_dict(), "linformer." if lm else ""
    tensors = {
        before + theirs: own[ours.removeprefix("encoder.")]
        for ours, theirs in expand(LAYER, depth).items()
    }
    matrices, biases = common.matrices_of(encoder, heads=1)
    common.check_zero("bias of E", biases, package=PACKAGE)
    for i, layer in enumerate(common.layers_of(encoder)):
        place = f"{before}net.layers.{i}.0.fn."
        common.check_no_bias(layer.attention, package=PACKAGE)
        mine = layer.attention.state_dict()
        tensors |= {place + theirs: mine[ours] for ours, theirs in expand(ATTENTION, 1).items()}
        tensors[f"{place}proj_k"], tensors[f"{place}proj_v"] = matrices[i][:, 0].transpose(1, 2)
    arguments = {
        "dim": settings["dim"],
        "seq_len": settings["max_length"],
        "depth": depth,
        "k": settings["k"][0],
        "heads": heads,
        "dim_head": settings["head_dim"],
        "one_kv_head": settings["num_kv_heads"] == 1 < heads,
    }
    if lm:
        arguments["num_tokens"] = model.config.vocab_size
        tensors |= common.words_back(model, LM, package=PACKAGE)
    return arguments, {name: tensor.detach().clone() for name, tensor in tensors.items()}
