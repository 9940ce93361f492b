"""What the converters have in common: tensors by name, sharing of E, and the models built of them.

A table maps our names to theirs, as in `family.py`. In their names `{h}` stands for the number of a
head; the tensors of all heads are then joined along their rows.

Legend: P sides (keys, values), T heads with a matrix of their own, K compressed rows, N positions.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ... import models
from ...core.attention import LinformerAttention
from ...core.encoder import EncoderLayer, LinformerEncoder
from ...core.projection import StoredProjection
from ...errors import UserError, user_input
from ..family import expand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..family import Table

Source = nn.Module | Mapping[str, Any]  # a module of theirs, its state dict, or a checkpoint of it
HEAD = ("lm_head.", "transform.")  # tensors outside the encoder of LinformerForMaskedLM
_WRAPPERS = ("model", "state_dict", "model_state_dict")
_SHOWN = 5  # names in one message


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint file: safetensors, or a pickle that `weights_only=True` accepts.

    The arguments that fairseq saves are an argparse.Namespace, which holds values and no code.
    """
    remedy = "Load it where you trust it, and save its state_dict() with torch.save or safetensors."
    with user_input(f"cannot read the checkpoint {path}", remedy=remedy):
        if Path(path).suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(loaded, Mapping):
            raise UserError(f"a checkpoint must hold a dictionary: {path} holds {type(loaded)}.")
        return dict(loaded)


class Checkpoint:
    """The tensors of a checkpoint by name. Those that no table names are an error."""

    def __init__(self, source: Source, *, package: str, prefix: str = "") -> None:
        tensors = source.state_dict() if isinstance(source, nn.Module) else _unwrapped(source)
        self.package = package
        self.tensors: dict[str, Tensor] = {
            name.removeprefix(prefix): tensor.detach()
            for name, tensor in tensors.items()
            if name.startswith(prefix) and isinstance(tensor, Tensor)
        }
        if not self.tensors:
            found = _listed(tensors) or "no names at all"
            raise UserError(
                f"no tensor of the checkpoint starts with the prefix {prefix!r}: got {found}."
            )
        self.unread = set(self.tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def rename(self, starts: Mapping[str, str]) -> None:
        """Replace the starts of names, in this order."""
        for old, new in starts.items():
            self.tensors = {
                new + name.removeprefix(old) if name.startswith(old) else name: tensor
                for name, tensor in self.tensors.items()
            }
        self.unread = set(self.tensors)

    def take(self, name: str, heads: int = 1) -> Tensor:
        if "{h}" in name:
            return torch.cat([self.take(name.replace("{h}", str(h))) for h in range(heads)])
        if name not in self.tensors:
            raise UserError(
                f"the checkpoint lacks {name!r}, which a model of {self.package} has: got "
                f"{_listed(self.tensors)}. If its names have a prefix, pass it, such as "
                "prefix='module.'."
            )
        self.unread.discard(name)
        return self.tensors[name]

    def take_table(self, table: Table, *, layers: int = 1, heads: int = 1) -> dict[str, Tensor]:
        return {ours: self.take(name, heads) for ours, name in expand(table, layers).items()}

    def take_linear(self, name: str) -> dict[str, Tensor]:
        return {end: self.take(f"{name}.{end}") for end in ("weight", "bias")}

    def count(self, pattern: str) -> int:
        """How many of the names pattern.format(0), pattern.format(1), ... there are."""
        number = 0
        while pattern.format(number) in self.tensors:
            number += 1
        return number

    def ignore(self, *endings: str) -> None:
        """Tensors that have no effect in their model."""
        self.unread = {name for name in self.unread if not name.endswith(endings)}

    def check_all_read(self) -> None:
        if self.unread:
            raise UserError(
                f"{len(self.unread)} tensors of the checkpoint are unknown in {self.package}: got "
                f"{_listed(sorted(self.unread))}. Remove them, or convert the part that is a "
                "Linformer with prefix=."
            )


@dataclass(kw_only=True)
class Converted:
    """Their model in our terms.

    values: of LinformerConfig.
    tensors: under the names of LinformerModel, and those of HEAD.
    """

    kind: Literal["attention", "encoder", "model", "masked_lm"]
    values: dict[str, Any]
    tensors: dict[str, Tensor]

    def model(self) -> models.LinformerPreTrainedModel:
        """A model that can be saved. An encoder reads vectors, through the identity."""
        values, tensors = dict(self.values), dict(self.tensors)
        if self.kind == "encoder":
            size = values["hidden_size"]
            values |= {"feature_size": size, "position_embedding_type": "none"}
            like = next(iter(tensors.values()))
            tensors["embeddings.feature_projection.weight"] = torch.eye(size).to(like)
            tensors["embeddings.feature_projection.bias"] = torch.zeros(size).to(like)
        if self.kind == "masked_lm":
            tensors = {n if n.startswith(HEAD) else f"linformer.{n}": t for n, t in tensors.items()}
        with user_input("the tensors of the checkpoint do not fit each other"):
            config = models.LinformerConfig(**values)
            kind = (
                models.LinformerForMaskedLM if "lm_head.bias" in tensors else models.LinformerModel
            )
            return _loaded(kind(config), tensors)

    def module(self) -> nn.Module:
        """The counterpart of their module."""
        if self.kind == "attention":
            return self.attention()
        model = self.model()
        return model.encoder if self.kind == "encoder" else model

    def attention(self) -> LinformerAttention:
        values = self.values
        with user_input("the tensors of the checkpoint do not fit each other"):
            attention = LinformerAttention(
                dim=values["hidden_size"],
                num_heads=values["num_attention_heads"],
                num_kv_heads=values.get("num_key_value_heads"),
                head_dim=values["head_dim"],
                max_length=values.get("max_position_embeddings"),
                k=values["k"],
                projection=values["projection"],
                sharing=values["sharing"],
                bias=False,
                out_bias=True,
                keep_scale=False,
                projection_bias=values.get("projection_bias", False),
            )
            return _loaded(attention, self.tensors)


# Every earlier implementation is like this: no token types, and E of a shorter input is cut off.
COMMON: dict[str, Any] = {
    "type_vocab_size": 0,
    "keep_scale": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "dropout_kind": "weights",
}


def share(matrices: list[Tensor]) -> tuple[str, list[Tensor]]:
    """The name of the sharing that holds for E and F of each layer (2, T, K, N), and its weights.

    It follows from the values: a checkpoint does not tell which tensors were one.
    """
    if any(not torch.equal(each, each[:, :1].expand_as(each)) for each in matrices):
        return "none", matrices
    matrices = [each[:, :1] for each in matrices]
    if any(not torch.equal(each[0], each[1]) for each in matrices):
        return "headwise", matrices
    matrices = [each[:1] for each in matrices]
    if len(matrices) > 1 and all(torch.equal(each, matrices[0]) for each in matrices):
        return "layerwise", matrices[:1]
    return "kv", matrices


def projection_values(
    matrices: list[Tensor], prefix: str = "encoder."
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The fields of LinformerConfig and the tensors that follow from E and F of each layer."""
    sharing, weights = share(matrices)
    ks = [each.shape[-2] for each in matrices]
    values = {
        "sharing": sharing,
        "k": ks[0] if len(set(ks)) == 1 else ks,
        "max_position_embeddings": matrices[0].shape[-1],
    }
    if sharing == "layerwise":
        return values, {f"{prefix}projection.weight": weights[0]}
    name = f"{prefix}layers.{{}}.attention.projection.weight"
    return values, {name.format(i): weight for i, weight in enumerate(weights)}


def settings_of(encoder: LinformerEncoder) -> dict[str, Any]:
    """What an encoder is, in the names of `LinformerEncoder`, to compare with what they have."""
    layers = layers_of(encoder)
    first = layers[0].attention
    return {
        "dim": encoder.dim,
        "depth": len(layers),
        "num_heads": first.num_heads,
        "num_kv_heads": first.num_kv_heads,
        "head_dim": first.head_dim,
        "max_length": first.max_length,
        "ff_dim": layers[0].feed_forward.w_2.in_features,
        "activation": layers[0].feed_forward.activation,
        "norm": layers[0].norm,
        "norm_eps": layers[0].attention_norm.eps,
        "final_norm": encoder.final_norm is not None,
        "bias": first.out_proj.bias is not None,
        "positions": "none" if encoder.positions is None else type(encoder.positions).__name__,
        "neighbours": 0 if encoder.neighbours is None else encoder.neighbours.weight.shape[1],
        "projection": _one({each.attention.kind for each in layers}),
        "k": [each.attention.k for each in layers],
        "window": _one({each.attention.window for each in layers}),
        "global_tokens": _one({each.attention.global_tokens for each in layers}),
    }


def check_settings(
    settings: dict[str, Any], allowed: Mapping[str, Sequence[Any]], *, package: str
) -> None:
    """Refuse what the other package has no counterpart of."""
    for name, values in allowed.items():
        if settings[name] not in values:
            raise UserError(
                f"{package} has only {name}={' or '.join(map(repr, values))}: got "
                f"{settings[name]!r}. This model cannot be expressed there."
            )


def layers_of(encoder: LinformerEncoder) -> list[EncoderLayer]:
    return [layer for layer in encoder.layers if isinstance(layer, EncoderLayer)]


def encoder_of(model: Any) -> tuple[bool, LinformerEncoder]:
    """Whether a model of ours is a language model, and its encoder."""
    lm = isinstance(model, models.LinformerForMaskedLM)
    encoder = model.linformer.encoder if lm else model
    if not isinstance(encoder, LinformerEncoder):
        raise UserError(
            "LinformerEncoder and LinformerForMaskedLM can be expressed in other packages: got "
            f"{type(model).__name__}."
        )
    return lm, encoder


def matrices_of(encoder: LinformerEncoder, *, heads: int) -> tuple[list[Tensor], list[Tensor]]:
    """E and F of each layer (2, heads, K, N), and their biases (2, heads, K), whatever is shared."""
    matrices, biases = [], []
    for layer in layers_of(encoder):
        own = layer.attention.projection or encoder.projection
        assert isinstance(own, StoredProjection)
        weight = own._first_rows(None if own.k == layer.attention.k else layer.attention.k).detach()
        if weight.shape[1] not in (1, heads):
            raise UserError(
                "the other package has one E and one F for all heads: got sharing='none'. This "
                "model cannot be expressed there."
            )
        rows = weight.shape[2]
        bias = weight.new_zeros(weight.shape[:3]) if own.bias is None else own.bias[:, :, :rows]
        matrices.append(weight.expand(2, heads, -1, -1))
        biases.append(bias.detach().expand(2, heads, -1))
    if own.keep_scale:
        warnings.warn(
            "the model has keep_scale=True, which the other package has not: outputs are equal "
            "for unpadded inputs of max_length only.",
            stacklevel=3,
        )
    return matrices, biases


def check_zero(name: str, tensors: Sequence[Tensor | None], *, package: str) -> None:
    if any(tensor is not None and bool(tensor.any()) for tensor in tensors):
        raise UserError(
            f"{package} has no {name}: got one that is not zero. This model cannot be expressed "
            "there."
        )


def check_no_bias(attention: LinformerAttention, *, package: str) -> None:
    for name in ("q_proj", "k_proj", "v_proj"):
        check_zero(f"bias of {name}", [getattr(attention, name).bias], package=package)


WORDS = {
    "lm_transform": (False,),
    "positions": ("learned",),
    "type_vocab_size": (0,),
    "norms_embeddings": (False,),
    "embedding_size": (None,),
}


def words_back(model: Any, table: Table, *, package: str) -> dict[str, Tensor]:
    """The tensors outside the encoder of a LinformerForMaskedLM under their names."""
    settings = {name: getattr(model.config, name) for name in WORDS}
    check_settings(settings, WORDS, package=package)
    own = model.state_dict()
    return {
        theirs: own[ours if ours.startswith(HEAD) else f"linformer.{ours}"]
        for ours, theirs in expand(table, 1).items()
    }


def _unwrapped(source: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _WRAPPERS:
        if isinstance(source.get(name), Mapping):
            inner: Mapping[str, Any] = source[name]
            return inner
    return source


def _loaded(module: Any, tensors: dict[str, Tensor]) -> Any:
    dtype = next(iter(tensors.values())).dtype
    module.to(dtype).load_state_dict({name: tensor.clone() for name, tensor in tensors.items()})
    return module.eval()


def _one(values: set[Any]) -> Any:
    return values.pop() if len(values) == 1 else tuple(sorted(values))


def _listed(names: Any) -> str:
    names = list(map(str, names))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
