"""`linformer-pytorch` 0.19.3 (tatp22): Linformer, LinformerLM and MHAttention.

Post-norm; a linear layer for each head; E and F with a bias for each row, which is added to every
channel (`projection_bias` here). Positions are sinusoids of another base: here a learned table
starts with their values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UserError
from . import checkpoint as common

if TYPE_CHECKING:
    from ..family import Table

PACKAGE = "linformer-pytorch"
PLACE = "seq.{2i}.fn."  # of an attention layer
HEADS: Table = {
    "q_proj.weight": "to_q.{h}.weight",
    "k_proj.weight": "to_k.{h}.weight",
    "v_proj.weight": "to_v.{h}.weight",
}
OUT: Table = {"out_proj.*": "w_o.*"}  # without w_o_intermediate_dim
LAYER: Table = {
    "encoder.layers.{i}.attention_norm.*": "seq.{2i}.norm.*",
    "encoder.layers.{i}.feed_forward_norm.*": "seq.{2i+1}.norm.*",
    "encoder.layers.{i}.feed_forward.w_1.*": "seq.{2i+1}.fn.w_1.*",
    "encoder.layers.{i}.feed_forward.w_2.*": "seq.{2i+1}.fn.w_2.*",
}
TOKENS: Table = {"embeddings.embed_tokens.weight": "to_token_emb.weight"}
LOGITS: Table = {"lm_head.*": "to_logits.*"}
PROJECT_IN: Table = {"embeddings.to_hidden.*": "linformer.project_in.*"}
VALUES: dict[str, Any] = common.COMMON | {
    "norm": "post",
    "qkv_bias": False,
    "embedding_norm": False,
}
LM_VALUES = {"tie_word_embeddings": False, "lm_transform": False}
# What a model must be to be expressed there.
ALLOWED = {
    "norm": ("post",),
    "activation": ("gelu", "relu"),
    "projection": ("linear", "fixed", "full"),
    "embedding_norm": (False,),
    "lm_transform": (False,),
}


def from_linformer_pytorch(
    source: common.Source,
    *,
    activation: str = "gelu",
    full_attention: bool = False,
    input_size: int | None = None,
    prefix: str = "",
    as_model: bool = False,
) -> Any:
    """Their module, its state dict or a checkpoint of it, as ours with equal outputs.

    Linformer becomes LinformerEncoder, LinformerLM a LinformerForMaskedLM without a layer before
    the words (LinformerModel with return_emb), and MHAttention LinformerAttention.

    `activation`, `full_attention` and `input_size` are theirs; a module has them. A state dict has
    no activation, does not say whether E is used, and has the input size in E only; nor does it
    show causal=True and decoder_mode=True, which are refused in a module. `prefix` is of
    the names of a Linformer inside a larger model. `as_model` gives a LinformerModel, which can be
    saved, instead of a LinformerEncoder.
    """
    tensors = common.Checkpoint(source, package=PACKAGE, prefix=prefix)
    options = _Options(activation, full_attention, input_size)
    if isinstance(source, nn.Module):
        options = _options_of(source, tensors, prefix)
    if options.activation not in ALLOWED["activation"]:
        raise UserError(f"activation must be gelu or relu: got {options.activation!r}.")
    _refuse(tensors, prefix, options)
    alone, lm = "to_q.0.weight" in tensors, "to_token_emb.weight" in tensors
    before = "linformer." if lm else ""
    before += "fn." if f"{before}project_in.weight" in tensors else ""
    place, ours = ("", "") if alone else (before + PLACE, common.ATTENTION)
    depth = tensors.count(before + "seq.{}.norm.weight") // 2 or 1
    heads = tensors.count(place.replace("{2i}", "0") + "to_q.{}.weight")
    folded = place.replace("{2i}", "0") + "w_o_1.weight" in tensors
    table = common.prefixed(HEADS if folded else HEADS | OUT, ours, place)
    table |= {} if alone else common.prefixed(LAYER, "", before)
    result = tensors.take_table(table, layers=depth, heads=heads)
    matrices = []
    for i in range(depth):
        here = place.replace("{2i}", str(2 * i))
        if folded:  # w_o_intermediate_dim
            out = _product(tensors.take_linear(f"{here}w_o_2"), tensors.take_linear(f"{here}w_o_1"))
            result |= {f"{ours}out_proj.{e}".replace("{i}", str(i)): out[e] for e in common.ENDS}
        if not options.full:
            matrices.append(_matrix(tensors, here, heads))
    query = result[ours.replace("{i}", "0") + "q_proj.weight"]
    values = VALUES | {
        "hidden_act": options.activation,
        "hidden_size": query.shape[1],
        "num_attention_heads": heads,
        "head_dim": len(query) // heads,
    }
    if not alone:
        values["num_hidden_layers"] = depth
        values["intermediate_size"] = len(result["encoder.layers.0.feed_forward.w_1.bias"])
    values |= _add_projection(tensors, result, matrices, options, alone=alone)
    if lm:
        values |= _add_words(tensors, result, values.get("max_position_embeddings"))
    tensors.check_all_read(("E.weight", "E.bias", "F.weight", "F.bias") if options.full else ())
    of_words = "masked_lm" if "lm_head.bias" in result else "model"
    kind = "attention" if alone else of_words if lm else "encoder"
    return common.built(kind, values, result, as_model=as_model)


class _Options(NamedTuple):
    """What their state dict does not have."""

    activation: str
    full: bool
    input_size: int | None
    causal: bool = False
    decoder: bool = False
    fixed: bool = False  # method="no_params"


def _options_of(source: nn.Module, tensors: common.Checkpoint, prefix: str) -> _Options:
    """The options of a module. Its E that is no parameter is added to the tensors."""
    parts: list[tuple[str, Any]] = [
        (name.removeprefix(prefix), part)
        for name, part in source.named_modules()
        if f"{name}.".startswith(prefix)
    ]
    heads = [(name, part) for name, part in parts if hasattr(part, "is_proj_tensor")]
    fixed = [(name, head) for name, head in heads if head.is_proj_tensor]
    for name, head in fixed:
        for side in "EF":
            tensors.tensors[f"{name}.{side}.weight"] = getattr(head, side).detach().T
    activations = {part.activation for _, part in parts if hasattr(part, "w_1")}
    sizes = {part.input_size for _, part in parts if hasattr(part, "input_size")}
    return _Options(
        activation="relu" if F.relu in activations else "gelu",
        full=any(head.full_attention for _, head in heads),
        input_size=sizes.pop() if len(sizes) == 1 else None,
        causal=any(head.causal_mask is not None for _, head in heads),
        decoder=any(getattr(part, "decoder_mode", False) for _, part in parts),
        fixed=bool(fixed),
    )


def _refuse(tensors: common.Checkpoint, prefix: str, options: _Options) -> None:
    """What no model here can express, by the names of their options."""
    names = list(tensors.tensors)
    attentions = any(name.endswith("fn.to_q.0.weight") for name in names)
    reasons = {
        "LinformerEncDec. Its encoder alone can be converted, with prefix='encoder.'": any(
            name.startswith("decoder.to_token_emb") for name in names
        ),
        "decoder_mode=True: its layers attend to two sequences": options.decoder
        or prefix.endswith("decoder."),
        "causal=True: E mixes all positions before the mask, so it sees later ones. Train "
        "LinformerForCausalLM instead": options.causal,
        "include_ff=False: layers here have a feed-forward part": attentions
        and not any(name.endswith("fn.w_1.weight") for name in names),
        "ff_intermediate: layers here have one width": any(".resample." in name for name in names),
        "method='convolution': its filters mix channels, those here do not": not options.full
        and any(t.dim() == 3 for name, t in tensors.tensors.items() if name.endswith("E.weight")),
        "method='no_params' in a state dict, because its E is not saved. Pass the module that was "
        "trained": not options.full
        and any(name.endswith("to_q.0.weight") for name in names)
        and not any(name.endswith("heads.0.E.weight") for name in names),
    }
    for reason, present in reasons.items():
        if present:
            raise UserError(f"this model of {PACKAGE} cannot be converted: it has {reason}.")


def _product(second: dict[str, Tensor], first: dict[str, Tensor]) -> dict[str, Tensor]:
    """The linear layer second(first(x)), computed in float64."""
    w_1, b_1, w_2, b_2 = (each[end].double() for each in (first, second) for end in common.ENDS)
    dtype = first["weight"].dtype
    return {"weight": (w_2 @ w_1).to(dtype), "bias": (w_2 @ b_1 + b_2).to(dtype)}


def _matrix(tensors: common.Checkpoint, prefix: str, heads: int) -> Tensor:
    """E and F of one layer with their biases as the last column: (2, H, K, N + 1)."""
    sides = []
    for side in "EF":
        for head in range(heads):
            name = f"{prefix}heads.{head}.{side}."
            weight = tensors.take(f"{name}weight")
            bias = f"{name}bias"
            column = tensors.take(bias) if bias in tensors else weight.new_zeros(len(weight))
            sides.append(torch.cat([weight, column[:, None]], 1))
    return torch.stack(sides).unflatten(0, (2, heads))


def _add_projection(
    tensors: common.Checkpoint,
    result: dict[str, Tensor],
    matrices: list[Tensor],
    options: _Options,
    *,
    alone: bool,
) -> dict[str, Any]:
    """Add E and F; what follows of them for the config."""
    if options.full:
        linear = [t for n, t in tensors.tensors.items() if n.endswith("E.weight") and t.dim() == 2]
        length = options.input_size or (linear[0].shape[1] if linear else None)
        known = {} if length is None else {"max_position_embeddings": length}
        return {"projection": "full", "k": None, "sharing": "kv", **known}
    values, weights = common.projection_values(matrices, alone=alone)
    values["max_position_embeddings"] -= 1
    values["projection"] = "fixed" if options.fixed else "linear"
    values["projection_bias"] = any(bool(weight[..., -1].any()) for weight in weights.values())
    for name, weight in weights.items():
        result[name] = weight[..., :-1]
        if values["projection_bias"]:
            result[name.replace(".weight", ".bias")] = weight[..., -1]
    return values


def _add_words(
    tensors: common.Checkpoint, result: dict[str, Tensor], length: int | None
) -> dict[str, Any]:
    """Add embeddings and logits; what follows of them for the config."""
    if length is None:
        raise UserError("this state dict does not have the input size: got input_size=None.")
    result |= tensors.take_table(TOKENS)
    words, size = result["embeddings.embed_tokens.weight"].shape
    result["embeddings.positions.weight"] = positions(tensors.take("pos_emb.inv_freq"), length)
    logits = tensors.take_linear("to_logits") if "to_logits.weight" in tensors else None
    projected = "linformer.project_in.weight" in tensors  # emb_dim
    if projected:
        if logits is None:
            raise UserError(
                f"this model of {PACKAGE} cannot be converted: it has return_emb=True with "
                "emb_dim, whose output layer has no place here."
            )
        result |= tensors.take_table(PROJECT_IN)
        logits = _product(logits, tensors.take_linear("linformer.project_out"))
    result |= {f"lm_head.{end}": tensor for end, tensor in (logits or {}).items()}
    return LM_VALUES | {"vocab_size": words, "embedding_size": size if projected else None}


def positions(frequencies: Tensor, length: int) -> Tensor:
    """Their sinusoids: sines, then cosines, of position * frequency. (length, 2 * frequencies)"""
    angles = torch.arange(length).to(frequencies)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)


def to_linformer_pytorch(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of their class, and its state dict, with the outputs of a model of ours.

    Of LinformerEncoder for `Linformer`, of LinformerForMaskedLM for `LinformerLM`. What they cannot
    express is refused.
    """
    table = LAYER | common.prefixed(HEADS | OUT, common.ATTENTION, PLACE)
    s, tensors, matrices = common.given_back(
        model, table, TOKENS | LOGITS, ALLOWED, package=PACKAGE, lm="linformer.", e_bias=True
    )
    full, lm = s["projection"] == "full", "vocab_size" in s
    heads, depth, ks, length = s["num_heads"], s["depth"], s["k"], s["max_length"] or 1
    step = 0 if full or depth == 1 or s["sharing"] == "layerwise" else ks[0] - ks[1]
    falling = ks if full else [max(1, ks[0] - i * step) for i in range(depth)]
    common.check_settings(s, {"num_kv_heads": (heads,), "k": (falling,)}, package=PACKAGE)
    if full:  # their E is there, and not used
        matrices = [(torch.zeros(2, 1, 1, length), torch.zeros(2, 1, 1))] * depth
    for i, both in enumerate(matrices):
        weight, bias = (each.expand(2, heads, *each.shape[2:]) for each in both)
        for h in range(heads):
            for number, side in enumerate("EF"):
                place = ("linformer." if lm else "") + PLACE.replace("{2i}", str(2 * i))
                tensors[f"{place}heads.{h}.{side}.weight"] = weight[number, h]
                tensors[f"{place}heads.{h}.{side}.bias"] = bias[number, h]
    arguments = {
        "input_size": length,
        "channels": s["dim"],
        "dim_k": 1 if full else ks[0],
        "dim_ff": s["ff_dim"],
        "dim_d": s["head_dim"],
        "nhead": heads,
        "depth": depth,
        "activation": s["activation"],
        "parameter_sharing": s["sharing"],
        "k_reduce_by_layer": step,
        "full_attention": full,
    }
    if lm:
        arguments["num_tokens"] = s["vocab_size"]
        frequencies = 1.0 / (100000 ** (torch.arange(0, s["dim"], 2).float() / s["dim"]))
        tensors["pos_emb.inv_freq"] = frequencies
        own = model.linformer.embeddings.positions.weight
        if s["dim"] % 2 or not torch.allclose(positions(frequencies, length), own, atol=1e-6):
            raise UserError(
                f"{PACKAGE} has its own sinusoids as positions: got a table of other values. This "
                "model cannot be expressed there."
            )
    return arguments, {name: tensor.clone() for name, tensor in tensors.items()}
