"""Checkpoints of the earlier implementations of Linformer as our models, with equal outputs.

A table maps our names, which are those of LinformerForMaskedLM, to theirs, as in `family.py`. `{h}`
is the number of a head: the tensors of all heads are joined along their rows.

Legend: P sides (keys, values), T heads with a matrix of their own, K compressed rows, N positions.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from inspect import signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import models
from ...core.encoder import LinformerEncoder
from ...errors import UserError, user_input
from ..family import expand, numbered
from ..rehome import first_of

if TYPE_CHECKING:
    from ..family import Table

Source = nn.Module | Mapping[str, Any]  # a module of theirs, its state dict, or a checkpoint of it
FIRST = "encoder.layers.0.attention."
HEAD = ("lm_head.", "transform.")  # tensors outside the encoder of LinformerForMaskedLM
WORDS, POSITIONS = "embeddings.embed_tokens.weight", "embeddings.positions.weight"
PLACES = {
    "linformer": "net.layers.{i}.",
    "linformer-pytorch": "seq.",
    "fairseq": "stack.layers.{i}.",
}
OF_LAYER = {  # ours -> those of linformer, linformer-pytorch and fairseq
    "attention.q_proj.*": ("0.fn.to_q.*", "{2i}.fn.to_q.{h}.*", "self_attn.q_proj.*"),
    "attention.k_proj.*": ("0.fn.to_k.*", "{2i}.fn.to_k.{h}.*", "self_attn.k_proj.*"),
    "attention.v_proj.*": ("0.fn.to_v.*", "{2i}.fn.to_v.{h}.*", "self_attn.v_proj.*"),
    "attention.out_proj.*": ("0.fn.to_out.*", "{2i}.fn.w_o.*", "self_attn.out_proj.*"),
    "attention_norm.*": ("0.norm.*", "{2i}.norm.*", "self_attn_layer_norm.*"),
    "feed_forward.w_1.*": ("1.fn.w1.*", "{2i+1}.fn.w_1.*", "fc1.*"),
    "feed_forward.w_2.*": ("1.fn.w2.*", "{2i+1}.fn.w_2.*", "fc2.*"),
    "feed_forward_norm.*": ("1.norm.*", "{2i+1}.norm.*", "final_layer_norm.*"),
}
OTHERS: dict[str, Table] = {  # which a checkpoint may have, or not
    "linformer": {
        WORDS: "token_emb.weight",
        POSITIONS: "pos_emb.weight",
        "lm_head.*": "to_logits.*",
    },
    "linformer-pytorch": {WORDS: "to_token_emb.weight", "lm_head.*": "to_logits.*"},
    "fairseq": {
        WORDS: "stack.embed_tokens.weight",
        POSITIONS: "stack.embed_positions.weight",
        "embeddings.norm.*": "stack.layernorm_embedding.*",
        "encoder.final_norm.*": "stack.layer_norm.*",  # with pre-norm only
        "lm_head.*": "encoder.lm_head.*",
        "transform.dense.*": "encoder.lm_head.dense.*",
        "transform.norm.*": "encoder.lm_head.layer_norm.*",
    },
}
TABLES: dict[str, Table] = {
    package: {"encoder.layers.{i}." + ours: place + theirs[n] for ours, theirs in OF_LAYER.items()}
    | OTHERS[package]
    for n, (package, place) in enumerate(PLACES.items())
}
# The sides of E and F, and their names; one that ends in a dot has a weight and a bias.
MATRICES = {
    "linformer": ("kv", "net.layers.{i}.0.fn.proj_{s}"),
    "linformer-pytorch": ("EF", "seq.{2i}.fn.heads.{h}.{s}."),
    "fairseq": ("kv", "stack.layers.{i}.self_attn.compress_{s}.weight"),
}
# Parts of names that show an option without counterpart here.
REFUSED = {
    "net.blocks.": "reversible=True: it has two residual streams. Train with reversible=False",
    "decoder.to_token_emb": "LinformerEncDec. Its encoder alone can be converted, with "
    "prefix='encoder.'",
    "project_in.": "emb_dim: its embeddings have another width. Train with emb_dim=None",
    ".resample.": "ff_intermediate: layers here have one width. Train without it",
    "w_o_1.": "w_o_intermediate_dim: two layers follow the attention. Save their product as w_o",
    "classification_heads.": "classification_heads. Remove these tensors, and fine-tune the "
    "converted model",
}
RENAMED: Table = {  # starts of fairseq's names, with those of older versions
    "decoder.": "encoder.",
    "encoder.sentence_encoder.": "stack.",
    "stack.emb_layer_norm.": "stack.layernorm_embedding.",
}
# Ends of fairseq's names without effect: it uses the weight of a shared E only.
UNUSED = (
    "version",
    *(f"compress_{end}" for end in ("k.bias", "v.bias", "layer.weight", "layer.bias")),
)
ACTIVATIONS = {"gelu": "gelu", "gelu_accurate": "gelu_tanh", "gelu_fast": "gelu_tanh"}  # fairseq's
COMMON: dict[str, Any] = {  # none has token types, and all cut E off for shorter inputs
    "type_vocab_size": 0,
    "keep_scale": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "dropout_kind": "weights",
}
PLAIN: dict[str, Any] = COMMON | {  # a linear layer leads to the words
    "qkv_bias": False,
    "final_norm": False,
    "embedding_norm": False,
    "tie_word_embeddings": False,
    "lm_transform": False,
}


def from_linformer(
    source: Source, *, heads: int | None = None, prefix: str = "", as_model: bool = False
) -> Any:
    """`linformer` 0.2.3 (lucidrains): a module, its state dict or a checkpoint of it, as ours.

    Linformer becomes LinformerEncoder, LinformerLM a LinformerForMaskedLM without a layer before
    the words, LinformerSelfAttention LinformerAttention. With `share_kv`, which uses the compressed
    keys as values, W_v and F are copies of W_k and E.

    `heads` is theirs, which a state dict does not have; it is not needed with one_kv_head. `prefix`
    is of the names of a Linformer inside a larger model, such as "transformer.". `as_model` gives a
    LinformerModel, which can be saved, instead of a LinformerEncoder.
    """
    if heads is None and isinstance(source, nn.Module):
        parts: Any = source.modules()
        heads = next((part.heads for part in parts if hasattr(part, "to_q")), None)
    read = _Checkpoint(source, "linformer", prefix)
    alone = "to_q.weight" in read.tensors
    read.rename({"": "net.layers.0.0.fn."} if alone else {"linformer.": ""})
    shared = "net.layers.0.0.fn.to_v.weight" not in read.tensors  # share_kv
    result = read.take_table({"to_v.": "to_k."} if shared else {})
    inner, kv_inner = (len(result[f"{FIRST}{side}_proj.weight"]) for side in "qk")
    if heads is None and kv_inner < inner:  # one_kv_head
        heads = inner // kv_inner
    if not heads or heads < 0 or inner % heads or kv_inner not in (inner, inner // heads):
        raise UserError(
            f"heads must divide the {inner} rows of to_q, and to_k must have as many or those of "
            f"one head: got heads={heads} and {kv_inner} rows. Pass the heads that the model was "
            "built with (8 unless you chose another)."
        )
    values = PLAIN | {"norm": "pre", "num_attention_heads": heads, "head_dim": inner // heads}
    values["num_key_value_heads"] = heads if kv_inner == inner else 1
    values |= read.take_projection(result, shared=shared)
    return read.build(values, result, as_model=as_model)


def from_linformer_pytorch(
    source: Source,
    *,
    activation: str = "gelu",
    full_attention: bool = False,
    prefix: str = "",
    as_model: bool = False,
) -> Any:
    """`linformer-pytorch` 0.19.3 (tatp22): a module, its state dict or a checkpoint, as ours.

    Linformer becomes LinformerEncoder, LinformerLM a LinformerForMaskedLM without a layer before
    the words (LinformerModel with return_emb), MHAttention LinformerAttention. The biases of E are
    added to all channels of a row (`projection_bias`); its sinusoids become learned positions.

    `activation` and `full_attention` are theirs; a module has them, a state dict has not. Nor does
    that show causal=True and decoder_mode=True, which are refused in a module. `prefix` and
    `as_model`: as in `from_linformer`.
    """
    read = _Checkpoint(source, "linformer-pytorch", prefix)
    parts: list[Any] = []
    if isinstance(source, nn.Module):
        parts = [part for name, part in source.named_modules() if f"{name}.".startswith(prefix)]
        relu = any(part.activation is F.relu for part in parts if hasattr(part, "w_1"))
        activation = "relu" if relu else "gelu"
        full_attention = any(getattr(part, "full_attention", False) for part in parts)
    if activation not in ("gelu", "relu"):
        raise UserError(f"activation must be gelu or relu: got {activation!r}.")
    alone = "to_q.0.weight" in read.tensors
    read.rename({"": "seq.0.fn."} if alone else {"linformer.": ""})
    e = read.tensors.get("seq.0.fn.heads.0.E.weight")
    refused = {
        "decoder_mode=True: its layers attend to two sequences": prefix.endswith("decoder.")
        or any(getattr(part, "decoder_mode", False) for part in parts),
        "causal=True: E mixes all positions before the mask, so it sees later ones. Train "
        "LinformerForCausalLM instead": any(
            getattr(part, "causal_mask", None) is not None for part in parts
        ),
        "include_ff=False: layers here have a feed-forward part. Train with include_ff=True": (
            "seq.0.norm.weight" in read.tensors and "seq.1.fn.w_1.weight" not in read.tensors
        ),
        "method='convolution': its filters mix channels. Train with method='learnable'": (
            e is not None and e.dim() == 3
        ),
        "method='no_params': its E is not saved. Train with method='learnable'": (
            "seq.0.fn.to_q.0.weight" in read.tensors and e is None
        ),
    }
    for reason in (reason for reason, present in refused.items() if present):
        raise read.refusal(reason)
    heads = read.count("seq.0.fn.to_q.{i}.weight")
    result = read.take_table(heads=heads)
    values = PLAIN | {"norm": "post", "hidden_act": activation, "num_attention_heads": heads}
    values["head_dim"] = len(result[f"{FIRST}q_proj.weight"]) // heads
    values |= read.take_projection(result, heads=heads, full=full_attention)
    if WORDS in result:
        length = values["max_position_embeddings"]
        result[POSITIONS] = sinusoids(read.take("pos_emb.inv_freq"), length)
    return read.build(values, result, as_model=as_model)


def sinusoids(frequencies: Tensor, length: int) -> Tensor:
    """Their positions: sines, then cosines, of position * frequency. (length, 2 * frequencies)"""
    angles = torch.arange(length).to(frequencies)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)


def from_fairseq(source: Source, *, heads: int | None = None, prefix: str = "") -> Any:
    """fairseq's `linformer_roberta`: {"model": tensors, "args" or "cfg": options}, or its tensors.

    It becomes a LinformerForMaskedLM, or without a language-model head a LinformerModel.

    It compresses before W_k and W_v, whose biases it adds afterwards: (E X) W_k + b_k; here it is
    E (X W_k + b_k). So b_k, which the softmax ignores, becomes zero, and as the weights of a query
    sum to 1, W_o b_v is added to the bias of W_o in place of b_v.

    `heads` is encoder_attention_heads, needed without options. `prefix` is of all names.
    """
    options: Any = {}
    if isinstance(source, Mapping):
        options = source.get("args") or (source.get("cfg") or {}).get("model") or {}
        options = options if isinstance(options, Mapping) else vars(options)
    heads = options.get("encoder_attention_heads") if heads is None else heads
    activation = options.get("activation_fn", "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(
            f"the activation of fairseq must be {', '.join(ACTIVATIONS)}: got "
            f"activation_fn={activation!r}."
        )
    read = _Checkpoint(source, "fairseq", prefix)
    read.rename(RENAMED)
    result = read.take_table()
    words, positions = (read.take(OTHERS["fairseq"][name]) for name in (WORDS, POSITIONS))
    if heads is None or heads < 1 or words.shape[1] % heads:
        raise UserError(
            f"heads must be a divisor of {words.shape[1]}, the width of the checkpoint: got "
            f"{heads}. Pass the encoder_attention_heads of the model."
        )
    for i in range(read.depth):
        key, value, out = (f"encoder.layers.{i}.attention.{x}_proj." for x in ("k", "v", "out"))
        moved = result[f"{out}weight"].double() @ result[f"{value}bias"].double()
        result[f"{out}bias"] = (moved + result[f"{out}bias"].double()).to(words.dtype)
        result |= {f"{name}bias": torch.zeros_like(words[0]) for name in (key, value)}
    shared = "stack.layers.0.self_attn.compress_v.weight" not in read.tensors
    values = COMMON | read.take_projection(result, shared=shared)
    first = len(positions) - values["max_position_embeddings"]
    if first < 0:
        raise UserError(
            f"the position table must have a row for each of the {len(positions) - first} "
            f"positions of compress_k: got {len(positions)} rows."
        )
    result[POSITIONS] = positions[first:]
    values |= {
        "num_attention_heads": heads,
        "hidden_act": ACTIVATIONS[activation],
        "norm": "pre" if "encoder.final_norm.weight" in result else "post",
        "embedding_norm": "embeddings.norm.weight" in result,
        "pad_token_id": max(0, first - 1),
        "tie_word_embeddings": torch.equal(result.get("lm_head.weight", words[:0]), words),
    }
    return read.build(values, result, unused=UNUSED)


SOURCES = {
    "linformer": from_linformer,
    "linformer-pytorch": from_linformer_pytorch,
    "fairseq": from_fairseq,
}


def convert_file(path: str | Path, *, source: str, **options: Any) -> Any:
    """A checkpoint file as a model that `save_pretrained` can save.

    source: linformer, linformer-pytorch or fairseq. options: of its `from_` function. A pickle must
    be readable by `weights_only=True`; the options that fairseq saves are an argparse.Namespace,
    which holds no code. An encoder without embeddings becomes a LinformerModel that reads vectors.
    """
    if source not in SOURCES:
        raise UserError(f"source must be one of {', '.join(SOURCES)}: got {source!r}.")
    convert: Any = SOURCES[source]
    known = [name for name in signature(convert).parameters if name not in ("source", "as_model")]
    if unknown := [name for name in options if name not in known]:
        raise UserError(
            f"a checkpoint of {source} takes the options {', '.join(known)}: got "
            f"{', '.join(unknown)}."
        )
    remedy = "Load it where you trust it, and save its state_dict() with torch.save or safetensors."
    with user_input(f"cannot read the checkpoint {path}", remedy=remedy):
        found: Any
        if Path(path).suffix == ".safetensors":
            from safetensors.torch import load_file

            found = load_file(path)
        else:
            with torch.serialization.safe_globals([argparse.Namespace]):
                found = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(found, Mapping):
            raise UserError(f"a checkpoint must hold a dictionary: {path} holds {type(found)}.")
    return convert(found, **options, **({} if source == "fairseq" else {"as_model": True}))


class _Checkpoint:
    """The tensors of a checkpoint by name. Those that no table names are an error."""

    def __init__(self, source: Source, package: str, prefix: str) -> None:
        found = source.state_dict() if isinstance(source, nn.Module) else source
        for wrapper in ("model", "state_dict", "model_state_dict"):
            found = found[wrapper] if isinstance(found.get(wrapper), Mapping) else found
        self.package, self.depth = package, 1
        self.tensors: dict[str, Tensor] = {
            name.removeprefix(prefix): tensor.detach()
            for name, tensor in found.items()
            if isinstance(tensor, Tensor) and name.startswith(prefix)
        }
        if not self.tensors:
            raise UserError(
                f"no tensor of the checkpoint starts with the prefix {prefix!r}: got "
                f"{first_of(list(map(str, found)))}."
            )
        for part, option in REFUSED.items():
            if any(part in name for name in self.tensors):
                raise self.refusal(option)

    def refusal(self, option: str) -> UserError:
        return UserError(f"this model of {self.package} cannot be converted: it has {option}.")

    def rename(self, starts: Table) -> None:
        for old, new in starts.items():
            for name in [name for name in self.tensors if name.startswith(old)]:
                self.tensors[new + name.removeprefix(old)] = self.tensors.pop(name)
        self.unread = set(self.tensors)

    def take(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise UserError(
                f"the checkpoint lacks {name!r}, which a model of {self.package} has: got "
                f"{first_of(list(self.tensors))}. If its names have a prefix, pass it, such as "
                "prefix='module.'."
            )
        self.unread.discard(name)
        return self.tensors[name]

    def count(self, name: str) -> int:
        return next(i for i in count() if numbered(name, i) not in self.tensors)

    def take_table(self, renamed: Table | None = None, *, heads: int = 1) -> dict[str, Tensor]:
        """Under our names: the weights of each layer, and of all others those that are there."""
        table = TABLES[self.package]
        found = self.count(table["encoder.layers.{i}.attention_norm.*"].replace("*", "weight"))
        self.depth, needed = max(1, found), "encoder.layers." if found else FIRST
        result = {}
        for ours, theirs in expand(table, self.depth).items():
            for old, new in (renamed or {}).items():
                theirs = theirs.replace(old, new)
            numbers = range(heads) if "{h}" in theirs else range(1)
            names = [theirs.replace("{h}", str(h)) for h in numbers]
            if names[0] in self.tensors or (ours.startswith(needed) and ours.endswith("weight")):
                result[ours] = torch.cat([self.take(name) for name in names])
        return result

    def take_projection(
        self, result: dict[str, Tensor], *, heads: int = 1, shared: bool = False, full: bool = False
    ) -> dict[str, Any]:
        """Add E and F to `result`; what follows from them for the configuration.

        shared: E is F too. Which others are one follows from their values: a checkpoint does not
        tell.
        """
        sides, pattern = MATRICES[self.package]

        def matrix(i: int, side: str, h: int) -> Tensor:  # (K, N + 1), the last column is the bias
            name = numbered(pattern, i).replace("{s}", side).replace("{h}", str(h))
            if name.endswith("."):
                return torch.cat([self.take(f"{name}weight"), self.take(f"{name}bias")[:, None]], 1)
            weight = self.take(name)
            return F.pad(weight.T if self.package == "linformer" else weight, (0, 1))

        layers = [  # (P, T, K, N + 1)
            torch.stack(
                [
                    torch.stack([matrix(i, side, h) for h in range(heads)])
                    for side in (sides[0] * 2 if shared else sides)
                ]
            )
            for i in range(self.depth)
        ]
        values: dict[str, Any] = {"max_position_embeddings": layers[0].shape[-1] - 1}
        if full:
            return values | {"projection": "full", "k": None, "sharing": "kv"}
        ks = [each.shape[-2] for each in layers]
        sharing = "none"
        if all(torch.equal(each, each[:, :1].expand_as(each)) for each in layers):
            sharing, layers = "headwise", [each[:, :1] for each in layers]
            if all(torch.equal(each[0], each[1]) for each in layers):
                sharing, layers = "kv", [each[:1] for each in layers]
                if len(layers) > 1 and all(torch.equal(each, layers[0]) for each in layers):
                    sharing, layers = "layerwise", layers[:1]
        biased = any(bool(each[..., -1].any()) for each in layers)
        for i, each in enumerate(layers):
            place = "encoder." if sharing == "layerwise" else f"encoder.layers.{i}.attention."
            result[f"{place}projection.weight"] = each[..., :-1]
            result |= {f"{place}projection.bias": each[..., -1]} if biased else {}
        k = ks[0] if len(set(ks)) == 1 else ks
        return values | {"k": k, "sharing": sharing, "projection_bias": biased}

    def build(
        self,
        values: dict[str, Any],
        tensors: dict[str, Tensor],
        *,
        as_model: bool = False,
        unused: tuple[str, ...] = (),
    ) -> Any:
        """Our module: one attention layer, an encoder, or with embeddings a model.

        as_model: an encoder as LinformerModel, which reads vectors through the identity.
        unused: how names of tensors without effect end.
        """
        unknown = sorted(name for name in self.unread if not name.endswith(unused))
        if unknown:
            raise UserError(
                f"{len(unknown)} tensors of the checkpoint are unknown in {self.package}: got "
                f"{first_of(unknown)}. Remove them, or convert the part that is a Linformer with "
                "prefix=."
            )
        query = tensors[f"{FIRST}q_proj.weight"]
        size, alone = query.shape[1], "encoder.layers.0.attention_norm.weight" not in tensors
        if alone and as_model:
            raise UserError(
                "one attention layer is no model that can be saved: leave as_model out."
            )
        wide = tensors.get("encoder.layers.0.feed_forward.w_1.bias", query)
        values |= {"hidden_size": size, "intermediate_size": len(wide)}
        values["num_hidden_layers"] = self.depth
        vectors, masked = WORDS not in tensors, "lm_head.weight" in tensors
        if vectors and not alone:
            values |= {"feature_size": size, "position_embedding_type": "none"}
            tensors["embeddings.feature_projection.weight"] = torch.eye(size).to(query)
            tensors["embeddings.feature_projection.bias"] = torch.zeros(size).to(query)
        elif not alone:
            values["vocab_size"] = len(tensors[WORDS])
        start = FIRST if alone else ""
        if masked:
            tensors = {n if n.startswith(HEAD) else f"linformer.{n}": t for n, t in tensors.items()}
        with user_input("the tensors of the checkpoint do not fit each other"):
            config = models.LinformerConfig(**values)
            module: Any
            if alone:
                module = LinformerEncoder(**config.encoder_arguments()).layers[0].attention
            else:
                module = (models.LinformerForMaskedLM if masked else models.LinformerModel)(config)
            module.to(query.dtype).load_state_dict(
                {name.removeprefix(start): tensor.clone() for name, tensor in tensors.items()}
            )
        module.eval()
        return module.encoder if vectors and not alone and not as_model else module
