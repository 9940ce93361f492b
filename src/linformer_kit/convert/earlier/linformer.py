"""`linformer` 0.2.3 (lucidrains): Linformer, LinformerLM and LinformerSelfAttention.

Pre-norm without a final norm; one E and one F for the heads of a layer; no bias in W_q, W_k, W_v.
Its `share_kv` uses the compressed keys as values: here W_v and F then are copies of W_k and E.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...errors import UserError
from . import checkpoint as common

if TYPE_CHECKING:
    from ..family import Table

PACKAGE = "linformer"
PLACE = "net.layers.{i}.0.fn."  # of an attention layer
ATTENTION: Table = {
    "q_proj.weight": "to_q.weight",
    "k_proj.weight": "to_k.weight",
    "v_proj.weight": "to_v.weight",
    "out_proj.*": "to_out.*",
}
SHARE_KV: Table = {"v_proj.weight": "to_k.weight"}
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
VALUES: dict[str, Any] = common.COMMON | {"norm": "pre", "final_norm": False, "qkv_bias": False}
LM_VALUES = {"tie_word_embeddings": False, "lm_transform": False}
# What a model must be to be expressed there.
ALLOWED = {
    "norm": ("pre",),
    "final_norm": (False,),
    "activation": ("gelu",),
    "sharing": ("headwise", "kv", "layerwise"),
    "embedding_norm": (False,),
    "lm_transform": (False,),
}


def from_linformer(
    source: common.Source, *, heads: int | None = None, prefix: str = "", as_model: bool = False
) -> Any:
    """Their module, its state dict or a checkpoint of it, as ours with equal outputs.

    Linformer becomes LinformerEncoder, LinformerLM a LinformerForMaskedLM without a layer before
    the words, and LinformerSelfAttention LinformerAttention.

    `heads` is theirs, which a state dict does not have; it is not needed with one_kv_head. `prefix`
    is of the names of a Linformer inside a larger model, such as "transformer.". `as_model` gives a
    LinformerModel, which can be saved, instead of a LinformerEncoder.
    """
    if heads is None and isinstance(source, nn.Module):
        parts: Any = source.modules()
        heads = next((part.heads for part in parts if hasattr(part, "to_q")), None)
    tensors = common.Checkpoint(source, package=PACKAGE, prefix=prefix)
    if any("net.blocks.0.f.net." in name for name in tensors.tensors):
        raise UserError(
            "linformer models with reversible=True have two streams, which no model here has: got "
            "net.blocks. Train with reversible=False, or with gradient checkpointing here."
        )
    alone, lm = "to_q.weight" in tensors, "token_emb.weight" in tensors
    before = "linformer." if lm else ""
    place, ours = ("", "") if alone else (before + PLACE, common.ATTENTION)
    depth = tensors.count(before + PLACE.replace("{i}", "{}") + "to_q.weight")
    shared = place.replace("{i}", "0") + "to_v.weight" not in tensors
    table = common.prefixed(ATTENTION | (SHARE_KV if shared else {}), ours, place)
    table |= {} if alone else common.prefixed(LAYER, "", before)
    result = tensors.take_table(table, layers=depth)
    sides = ("proj_k", "proj_k" if shared else "proj_v")
    matrices = [
        torch.stack([tensors.take(place.replace("{i}", str(i)) + side).T for side in sides])[
            :, None
        ]
        for i in range(depth)
    ]
    values, weights = common.projection_values(matrices, alone=alone)
    first = ours.replace("{i}", "0")
    values |= VALUES | _head_values(
        result[f"{first}q_proj.weight"], result[f"{first}k_proj.weight"], heads
    )
    if not alone:
        values["num_hidden_layers"] = depth
        values["intermediate_size"] = len(result["encoder.layers.0.feed_forward.w_1.bias"])
    if lm:
        result |= tensors.take_table(LM)
        values |= LM_VALUES | {"vocab_size": len(result["lm_head.bias"])}
    tensors.check_all_read()
    kind = "attention" if alone else "masked_lm" if lm else "encoder"
    return common.built(kind, values, result | weights, as_model=as_model)


def _head_values(query: Tensor, key: Tensor, heads: int | None) -> dict[str, Any]:
    inner, kv_inner = len(query), len(key)
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
        "hidden_size": query.shape[1],
        "num_attention_heads": heads,
        "head_dim": inner // heads,
        "num_key_value_heads": heads if kv_inner == inner else 1,
    }


def to_linformer(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of their class, and its state dict, with the outputs of a model of ours.

    Of LinformerEncoder for `Linformer`, of LinformerForMaskedLM for `LinformerLM`. What they cannot
    express is refused.
    """
    table = LAYER | common.prefixed(ATTENTION, common.ATTENTION, PLACE)
    s, tensors, matrices = common.given_back(
        model, table, LM, ALLOWED, package=PACKAGE, lm="linformer."
    )
    allowed = {
        "ff_dim": (4 * s["dim"],),
        "num_kv_heads": (1, s["num_heads"]),
        "k": ([s["k"][0]] * s["depth"],),
    }
    common.check_settings(s, allowed, package=PACKAGE)
    lm = "vocab_size" in s
    for i, (matrix, _) in enumerate(matrices):
        place = ("linformer." if lm else "") + PLACE.replace("{i}", str(i))
        tensors[f"{place}proj_k"], tensors[f"{place}proj_v"] = matrix[:, 0].transpose(1, 2)
    arguments = {
        "dim": s["dim"],
        "seq_len": s["max_length"],
        "depth": s["depth"],
        "k": s["k"][0],
        "heads": s["num_heads"],
        "dim_head": s["head_dim"],
        "one_kv_head": s["num_kv_heads"] == 1 < s["num_heads"],
    }
    arguments |= {"num_tokens": s["vocab_size"]} if lm else {}
    return arguments, {name: tensor.clone() for name, tensor in tensors.items()}
