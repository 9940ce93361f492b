"""Models of ours as the earlier implementations have them: the tables of `loading.py` backwards.

Each function returns the arguments of their class and its state dict; of LinformerEncoder for their
encoder, of LinformerForMaskedLM for their language model. What they cannot express is refused.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from ...core.encoder import LinformerEncoder
from ...core.projection_kinds import BiasedProjection
from ...errors import UserError
from ...models import LinformerForMaskedLM
from ..family import expand, numbered
from .loading import ACTIVATIONS, MATRICES, POSITIONS, TABLES, sinusoids

Given = tuple[dict[str, Any], dict[str, Tensor]]
Allowed = dict[str, tuple[Any, ...]]
# What a model must be to be expressed there, in the names of `_settings`.
ALLOWED: Allowed = {
    "norm_eps": (1e-5,),
    "bias": (True,),
    "positions": ("none",),
    "projection": ("linear", "fixed"),
    "window": (0,),
    "global_tokens": (0,),
    "position_embedding_type": ("learned",),
    "embedding_size": (None,),
}
SHARED = ("headwise", "kv", "layerwise")
PLAIN: Allowed = {"embedding_norm": (False,), "lm_transform": (False,)}


def to_linformer(model: nn.Module) -> Given:
    """The arguments of `linformer`'s Linformer or LinformerLM, and its state dict."""
    s = _settings(model, "linformer")
    allowed: Allowed = {"norm": ("pre",), "final_norm": (False,), "activation": ("gelu",)}
    allowed |= {"sharing": SHARED, "ff_dim": (4 * s["dim"],), "k": ([s["k"][0]] * s["depth"],)}
    allowed |= {"num_kv_heads": (1, s["num_heads"])}
    _check(s, allowed | PLAIN, "linformer")
    lm = "vocab_size" in s
    tensors = _tensors(model, s, "linformer", lm="linformer." if lm else "")
    arguments = {
        "dim": s["dim"],
        "seq_len": s["max_length"],
        "depth": s["depth"],
        "k": s["k"][0],
        "heads": s["num_heads"],
        "dim_head": s["head_dim"],
        "one_kv_head": s["num_kv_heads"] == 1 < s["num_heads"],
    }
    return arguments | ({"num_tokens": s["vocab_size"]} if lm else {}), tensors


def to_linformer_pytorch(model: Any) -> Given:
    """The arguments of `linformer-pytorch`'s Linformer or LinformerLM, and its state dict."""
    s = _settings(model, "linformer-pytorch")
    heads, depth, ks, length = s["num_heads"], s["depth"], s["k"], s["max_length"] or 1
    full, lm = s["projection"] == "full", "vocab_size" in s
    step = 0 if full or depth == 1 or s["sharing"] == "layerwise" else ks[0] - ks[1]
    falling = ks if full else [max(1, ks[0] - i * step) for i in range(depth)]
    allowed: Allowed = {"norm": ("post",), "activation": ("gelu", "relu"), "num_kv_heads": (heads,)}
    allowed |= {"projection": ("linear", "fixed", "full"), "k": (falling,)}
    _check(s, allowed | PLAIN, "linformer-pytorch")
    tensors = _tensors(model, s, "linformer-pytorch", lm="linformer." if lm else "")
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
        if s["dim"] % 2 or not torch.allclose(sinusoids(frequencies, length), own, atol=1e-6):
            raise UserError(
                "linformer-pytorch has its own sinusoids as positions: got a table of other "
                "values. This model cannot be expressed there."
            )
    return arguments, tensors


def to_fairseq(model: Any) -> Given:
    """The options of `linformer_roberta`, and its state dict; of LinformerForMaskedLM alone."""
    if not isinstance(model, LinformerForMaskedLM):
        raise UserError(
            f"only LinformerForMaskedLM can be expressed in fairseq: got {type(model).__name__}."
        )
    s, config = _settings(model, "fairseq"), model.config
    pre, ratio = s["norm"] == "pre", (s["max_length"] or 1) // (s["k"][0] or 1)
    allowed: Allowed = {
        "activation": tuple(ACTIVATIONS.values()),
        "sharing": SHARED,
        "final_norm": (pre,),
    }
    allowed |= {"num_kv_heads": (s["num_heads"],), "head_dim": (s["dim"] // s["num_heads"],)}
    allowed |= {"k": ([(s["max_length"] or 1) // max(1, ratio)] * s["depth"],)}
    _check(s, allowed | {"lm_transform": (True,)}, "fairseq")
    tensors = _tensors(model, s, "fairseq", sides="kv")
    positions = tensors["stack.embed_positions.weight"]
    padding = 1 if config.pad_token_id is None else config.pad_token_id
    rows = positions.new_zeros(padding + 1, s["dim"])
    tensors["stack.embed_positions.weight"] = torch.cat([rows, positions])
    for i in range(s["depth"]):
        for side in "qkv":
            name = f"stack.layers.{i}.self_attn.{side}_proj.bias"
            tensors.setdefault(name, torch.zeros(s["dim"]))
        tensors[f"stack.layers.{i}.version"] = torch.tensor(2)
    tensors["encoder.version"] = torch.tensor(2)
    activations = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    arguments = {
        "encoder_layers": s["depth"],
        "encoder_embed_dim": s["dim"],
        "encoder_ffn_embed_dim": s["ff_dim"],
        "encoder_attention_heads": s["num_heads"],
        "activation_fn": activations[s["activation"]],
        "encoder_normalize_before": pre,
        "layernorm_embedding": s["embedding_norm"],
        "untie_weights_roberta": not config.tie_word_embeddings,
        "max_positions": s["max_length"],
        "compressed": ratio,
        "shared_kv_compressed": 0,
        "shared_layer_kv_compressed": 0,
    }
    stack = "encoder.sentence_encoder."
    return arguments, {name.replace("stack.", stack, 1): t for name, t in tensors.items()}


def _settings(model: Any, package: str) -> dict[str, Any]:
    """What a model is, in the names of `LinformerEncoder` and of LinformerConfig."""
    lm = isinstance(model, LinformerForMaskedLM)
    encoder: Any = model.linformer.encoder if lm else model
    if not isinstance(encoder, LinformerEncoder):
        raise UserError(
            f"LinformerEncoder and LinformerForMaskedLM can be expressed in {package}: got "
            f"{type(model).__name__}."
        )
    layers: list[Any] = list(encoder.layers)
    first = layers[0].attention
    settings = {
        name: getattr(first, name)
        for name in ("num_heads", "num_kv_heads", "head_dim", "max_length", "sharing")
    }
    for name, own in (("projection", "kind"), ("window",) * 2, ("global_tokens",) * 2):
        values = sorted({getattr(layer.attention, own) for layer in layers})
        settings[name] = values[0] if len(values) == 1 else values
    settings |= {
        "dim": encoder.dim,
        "depth": len(layers),
        "k": [layer.attention.k for layer in layers],
        "ff_dim": layers[0].feed_forward.w_2.in_features,
        "activation": layers[0].feed_forward.activation,
        "norm": layers[0].norm,
        "norm_eps": layers[0].attention_norm.eps,
        "final_norm": encoder.final_norm is not None,
        "bias": first.out_proj.bias is not None,
        "positions": "none" if encoder.positions is None else type(encoder.positions).__name__,
    }
    if lm:
        config: Any = model.config
        settings |= {"embedding_norm": config.norms_embeddings, "vocab_size": config.vocab_size}
        settings |= {"embedding_size": config.embedding_size, "lm_transform": config.lm_transform}
        settings["position_embedding_type"] = config.positions
    return settings


def _check(settings: dict[str, Any], allowed: Allowed, package: str) -> None:
    for name, values in (ALLOWED | allowed).items():
        if name in settings and settings[name] not in values:
            raise UserError(
                f"{package} has only {name}={' or '.join(map(repr, values))}: got "
                f"{settings[name]!r}. This model cannot be expressed there."
            )


def _tensors(
    model: Any, s: dict[str, Any], package: str, *, lm: str = "", sides: str = "qkv"
) -> dict[str, Tensor]:
    """The tensors of a model under their names, with E and F; all others must be zero.

    lm: before the names of an encoder in their language model. sides: those without a bias.
    """
    masked = "vocab_size" in s
    own = {
        name.removeprefix("linformer.") if masked else f"encoder.{name}": tensor
        for name, tensor in model.state_dict().items()
    }
    found: dict[str, Tensor] = {}
    unbiased = tuple(f"{side}_proj.bias" for side in sides)
    for ours, theirs in expand(TABLES[package], s["depth"]).items():
        if ours not in own or ours.endswith(unbiased):
            continue
        name = (lm if ours.startswith("encoder.") else "") + theirs
        rows = own.pop(ours)
        for h, part in enumerate(rows.chunk(s["num_heads"]) if "{h}" in name else [rows]):
            found[name.replace("{h}", str(h))] = part
    elsewhere = ["projection.weight", POSITIONS]
    elsewhere += ["projection.bias"] if package == "linformer-pytorch" else []
    for name, tensor in own.items():
        if not name.endswith(tuple(elsewhere)) and bool(tensor.any()):
            raise UserError(
                f"{package} has no place for {name}, which is not zero. This model cannot be "
                "expressed there."
            )
    of_e, pattern = MATRICES[package]
    for i, (weight, bias) in enumerate(_matrices(model.linformer.encoder if masked else model, s)):
        heads = s["num_heads"] if "{h}" in pattern else 1
        for p, side in enumerate(of_e):
            for h in range(heads):
                name = lm + numbered(pattern, i).replace("{h}", str(h)).replace("{s}", side)
                rows = weight.expand(2, heads, -1, -1)[p, h]
                if name.endswith("."):
                    found |= {f"{name}weight": rows, f"{name}bias": bias.expand(2, heads, -1)[p, h]}
                else:
                    found[name] = rows.T if package == "linformer" else rows
    return {name: tensor.clone() for name, tensor in found.items()}


def _matrices(encoder: Any, s: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    """E and F of each layer (P, T, K, N), and their biases (P, T, K)."""
    if s["projection"] == "full":  # their E is there, and not used
        return [(torch.zeros(1, 1, 1, s["max_length"] or 1), torch.zeros(1, 1, 1))] * s["depth"]
    found = []
    for layer in encoder.layers:
        own, k = layer.attention.projection or encoder.projection, layer.attention.k
        weight = own._first_rows(None if own.k == k else k).detach()
        biased = isinstance(own, BiasedProjection)
        bias = own.bias[:, :, :k].detach() if biased else weight.new_zeros(weight.shape[:3])
        found.append((weight, bias))
    if own.keep_scale:
        warnings.warn(
            "the model has keep_scale=True, which the other package has not: outputs are equal "
            "for unpadded inputs of max_length only.",
            stacklevel=4,
        )
    return found
