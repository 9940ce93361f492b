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
from ..family import expand
from . import checkpoint as common

if TYPE_CHECKING:
    from ..family import Table

PACKAGE = "linformer-pytorch"
ENDS = ("weight", "bias")
HEADS: Table = {
    "q_proj.weight": "to_q.{h}.weight",
    "k_proj.weight": "to_k.{h}.weight",
    "v_proj.weight": "to_v.{h}.weight",
}
OUT: Table = {"out_proj.*": "w_o.*"}
# Their attention and feed-forward part follow each other in one list: {a} = 2 i, {f} = 2 i + 1.
LAYER: Table = {
    "encoder.layers.{i}.attention_norm.*": "seq.{a}.norm.*",
    "encoder.layers.{i}.feed_forward_norm.*": "seq.{f}.norm.*",
    "encoder.layers.{i}.feed_forward.w_1.*": "seq.{f}.fn.w_1.*",
    "encoder.layers.{i}.feed_forward.w_2.*": "seq.{f}.fn.w_2.*",
}
TOKENS: Table = {"embeddings.embed_tokens.weight": "to_token_emb.weight"}
LOGITS: Table = {"lm_head.*": "to_logits.*"}
PROJECT_IN: Table = {"embeddings.to_hidden.*": "linformer.project_in.*"}
VALUES: dict[str, Any] = common.COMMON | {
    "norm": "post",
    "qkv_bias": False,
    "embedding_norm": False,
}
# What an encoder must be to be expressed there.
ALLOWED = {
    "norm": ("post",),
    "norm_eps": (1e-5,),
    "activation": ("gelu", "relu"),
    "bias": (True,),
    "positions": ("none",),
    "neighbours": (0,),
    "projection": ("linear", "fixed", "full"),
    "window": (0,),
    "global_tokens": (0,),
}


def from_linformer_pytorch(
    source: common.Source,
    *,
    activation: str = "gelu",
    full_attention: bool = False,
    input_size: int | None = None,
    prefix: str = "",
) -> Any:
    """Their module, its state dict or a checkpoint of it, as ours with equal outputs.

    Linformer becomes LinformerEncoder, LinformerLM a LinformerForMaskedLM without a layer before
    the words (LinformerModel with return_emb), and MHAttention LinformerAttention.

    Args:
        activation, full_attention, input_size: theirs. A state dict has no activation, does not say
            whether E is used, and has the input size in E only. A module has them all.
        prefix: of the names of the Linformer inside a larger model.

    """
    return converted(
        source,
        activation=activation,
        full_attention=full_attention,
        input_size=input_size,
        prefix=prefix,
    ).module()


def converted(
    source: common.Source,
    *,
    activation: str = "gelu",
    full_attention: bool = False,
    input_size: int | None = None,
    prefix: str = "",
) -> common.Converted:
    tensors = common.Checkpoint(source, package=PACKAGE, prefix=prefix)
    options = _Options(activation, full_attention, input_size)
    if isinstance(source, nn.Module):
        options = _options_of(source, tensors, prefix)
    if options.activation not in ALLOWED["activation"]:
        raise UserError(f"activation must be gelu or relu: got {options.activation!r}.")
    _refuse(tensors, prefix, options)
    lm = "to_token_emb.weight" in tensors
    result: dict[str, Tensor] = {}
    matrices: list[Tensor] = []
    if "to_q.0.weight" in tensors:
        depth, kind = 1, "attention"
        result, heads = _attention(tensors, "")
        matrices = [] if options.full else [_matrix(tensors, "", heads)]
        inner = result["q_proj.weight"]
    else:
        kind = "encoder" if not lm else "masked_lm" if "to_logits.weight" in tensors else "model"
        before = "linformer." if lm else ""
        before += "fn." if f"{before}project_in.weight" in tensors else ""
        depth = max(1, tensors.count(before + "seq.{}.norm.weight") // 2)
        result = tensors.take_table(_layer_table(depth, before))
        for i in range(depth):
            place = f"{before}seq.{2 * i}.fn."
            found, heads = _attention(tensors, place)
            result |= {f"encoder.layers.{i}.attention.{name}": t for name, t in found.items()}
            if not options.full:
                matrices.append(_matrix(tensors, place, heads))
        inner = result["encoder.layers.0.attention.q_proj.weight"]
    values = VALUES | {
        "hidden_act": options.activation,
        "hidden_size": inner.shape[1],
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "head_dim": inner.shape[0] // heads,
    }
    if kind != "attention":
        values["intermediate_size"] = len(result["encoder.layers.0.feed_forward.w_1.bias"])
    values |= _add_projection(tensors, result, matrices, kind, options)
    if lm:
        values |= _add_words(tensors, result, values)
    tensors.check_all_read()
    return common.Converted(kind=kind, values=values, tensors=result)  # type: ignore[arg-type]


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


def _layer_table(depth: int, before: str = "") -> Table:
    table = {}
    for i in range(depth):
        for ours, theirs in LAYER.items():
            place = theirs.format(a=2 * i, f=2 * i + 1)
            table[ours.replace("{i}", str(i))] = before + place
    return table


def _attention(tensors: common.Checkpoint, prefix: str) -> tuple[dict[str, Tensor], int]:
    """The tensors of one attention layer without its projection, and the number of heads."""
    heads = max(1, tensors.count(prefix + "to_q.{}.weight"))
    table = HEADS if f"{prefix}w_o_1.weight" in tensors else HEADS | OUT
    result = tensors.take_table({ours: prefix + name for ours, name in table.items()}, heads=heads)
    if table is HEADS:  # w_o_intermediate_dim: two linear layers are one
        first, second = (tensors.take_linear(f"{prefix}w_o_{number}") for number in (1, 2))
        result["out_proj.weight"], result["out_proj.bias"] = _product(second, first)
    return result, heads


def _product(second: dict[str, Tensor], first: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """W and b of second(first(x)), in float64."""
    w_1, b_1, w_2, b_2 = (each[end].double() for each in (first, second) for end in ENDS)
    dtype = first["weight"].dtype
    return (w_2 @ w_1).to(dtype), (w_2 @ b_1 + b_2).to(dtype)


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
    kind: str,
    options: _Options,
) -> dict[str, Any]:
    if options.full:
        linear = [t for n, t in tensors.tensors.items() if n.endswith("E.weight") and t.dim() == 2]
        tensors.ignore("E.weight", "E.bias", "F.weight", "F.bias")
        length = options.input_size or (linear[0].shape[1] if linear else None)
        known = {} if length is None else {"max_position_embeddings": length}
        return {"projection": "full", "k": None, "sharing": "kv", **known}
    values, weights = common.projection_values(matrices)
    values["max_position_embeddings"] -= 1
    values["projection"] = "fixed" if options.fixed else "linear"
    values["projection_bias"] = any(bool(weight[..., -1].any()) for weight in weights.values())
    for name, weight in weights.items():
        name = "projection.weight" if kind == "attention" else name
        result[name] = weight[..., :-1]
        if values["projection_bias"]:
            result[name.replace(".weight", ".bias")] = weight[..., -1]
    return values


def _add_words(
    tensors: common.Checkpoint, result: dict[str, Tensor], values: dict[str, Any]
) -> dict[str, Any]:
    """Add embeddings and logits; what follows of them for the config."""
    result |= tensors.take_table(TOKENS)
    words, size = result["embeddings.embed_tokens.weight"].shape
    length = values.get("max_position_embeddings")
    if length is None:
        raise UserError("this state dict does not have the input size: pass input_size.")
    result["embeddings.positions.weight"] = positions(tensors.take("pos_emb.inv_freq"), length)
    projected = "linformer.project_in.weight" in tensors
    if projected:
        result |= tensors.take_table(PROJECT_IN)
        out = tensors.take_linear("linformer.project_out")
    if "to_logits.weight" in tensors:
        result |= tensors.take_table(LOGITS)
        if projected:  # two linear layers are one
            logits = {end: result[f"lm_head.{end}"] for end in ENDS}
            result["lm_head.weight"], result["lm_head.bias"] = _product(logits, out)
    elif projected:
        raise UserError(
            f"this model of {PACKAGE} cannot be converted: it has return_emb=True with emb_dim, "
            "whose output layer has no place here."
        )
    return {
        "vocab_size": words,
        "embedding_size": size if projected else None,
        "position_embedding_type": "learned",
        "tie_word_embeddings": False,
        "lm_transform": False,
    }


def positions(frequencies: Tensor, length: int) -> Tensor:
    """Their sinusoids: sines, then cosines, of position * frequency. (length, 2 * frequencies)"""
    angles = torch.arange(length).to(frequencies)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)


def to_linformer_pytorch(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of their class, and its state dict, with the outputs of a model of ours.

    Of LinformerEncoder for `Linformer`, of LinformerForMaskedLM for `LinformerLM`. What they cannot
    express is refused.
    """
    lm, encoder = common.encoder_of(model)
    settings = common.settings_of(encoder)
    heads, depth, ks = settings["num_heads"], settings["depth"], settings["k"]
    full = settings["projection"] == "full"
    sharing = common.layers_of(encoder)[0].attention.sharing
    step = 0 if full or depth == 1 or sharing == "layerwise" else ks[0] - ks[1]
    falling = ks if full else [max(1, ks[0] - i * step) for i in range(depth)]
    allowed = ALLOWED | {"num_kv_heads": (heads,), "k": (falling,)}
    common.check_settings(settings, allowed, package=PACKAGE)
    own, before = encoder.state_dict(), "linformer." if lm else ""
    table = expand(_layer_table(depth, before), 1)
    tensors = {theirs: own[ours.removeprefix("encoder.")] for ours, theirs in table.items()}
    length = settings["max_length"] or 1
    matrices = [torch.zeros(2, heads, 1, length)] * depth
    biases = [torch.zeros(2, heads, 1)] * depth
    if not full:
        matrices, biases = common.matrices_of(encoder, heads=heads)
    for i, layer in enumerate(common.layers_of(encoder)):
        place = f"{before}seq.{2 * i}.fn."
        common.check_no_bias(layer.attention, package=PACKAGE)
        mine = layer.attention.state_dict()
        tensors |= {place + theirs: mine[ours] for ours, theirs in expand(OUT, 1).items()}
        for ours, theirs in HEADS.items():
            for h, rows in enumerate(mine[ours].chunk(heads)):
                tensors[place + theirs.replace("{h}", str(h))] = rows
        for h in range(heads):
            for number, side in enumerate("EF"):
                name = f"{place}heads.{h}.{side}."
                tensors[f"{name}weight"] = matrices[i][number, h]
                tensors[f"{name}bias"] = biases[i][number, h]
    arguments = {
        "input_size": length,
        "channels": settings["dim"],
        "dim_k": 1 if full else ks[0],
        "dim_ff": settings["ff_dim"],
        "dim_d": settings["head_dim"],
        "nhead": heads,
        "depth": depth,
        "activation": settings["activation"],
        "parameter_sharing": sharing,
        "k_reduce_by_layer": step,
        "full_attention": full,
    }
    if lm:
        tensors |= common.words_back(model, TOKENS | LOGITS, package=PACKAGE)
        size = settings["dim"]
        frequencies = 1.0 / (100000 ** (torch.arange(0, size, 2).float() / size))
        table_of_ours = model.state_dict()["linformer.embeddings.positions.weight"]
        if size % 2 or not torch.allclose(positions(frequencies, length), table_of_ours, atol=1e-6):
            raise UserError(
                f"{PACKAGE} has its own sinusoids as positions: got others, or learned ones. This "
                "model cannot be expressed there."
            )
        tensors["pos_emb.inv_freq"] = frequencies
        arguments["num_tokens"] = model.config.vocab_size
    return arguments, {name: tensor.detach().clone() for name, tensor in tensors.items()}
