"""What the converters have in common: tensors by name, sharing of E, and the models built of them.

A table maps our names to theirs, as in `family.py`. `{i}` is the number of a layer; in their names
`{2i}` and `{2i+1}` are twice that, and `{h}` is the number of a head: the tensors of all heads are
then joined along their rows. Our names are those of LinformerModel, and of HEAD.

Legend: P sides (keys, values), T heads with a matrix of their own, K compressed rows, N positions.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ... import models
from ...core.encoder import LinformerEncoder
from ...core.projection_kinds import BiasedProjection
from ...errors import UserError, user_input
from ..family import expand

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..family import Table

Source = nn.Module | Mapping[str, Any]  # a module of theirs, its state dict, or a checkpoint of it
ATTENTION = "encoder.layers.{i}.attention."
HEAD = ("lm_head.", "transform.")  # tensors outside the encoder of LinformerForMaskedLM
ENDS = ("weight", "bias")
_SHOWN = 5  # names in one message


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint file: safetensors, or a pickle that `weights_only=True` accepts.

    The options that fairseq saves are an argparse.Namespace, which holds values and no code.
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
        found = source.state_dict() if isinstance(source, nn.Module) else source
        for wrapper in ("model", "state_dict", "model_state_dict"):
            if isinstance(found.get(wrapper), Mapping):
                found = found[wrapper]
        self.package = package
        self.tensors: dict[str, Tensor] = {
            name.removeprefix(prefix): tensor.detach()
            for name, tensor in found.items()
            if isinstance(tensor, Tensor) and name.startswith(prefix)
        }
        if not self.tensors:
            raise UserError(
                f"no tensor of the checkpoint starts with the prefix {prefix!r}: got "
                f"{_listed(found)}."
            )
        self.unread = set(self.tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def rename(self, starts: Table) -> None:
        """Replace the starts of names."""
        for old, new in starts.items():
            for name in [name for name in self.tensors if name.startswith(old)]:
                self.tensors[new + name.removeprefix(old)] = self.tensors.pop(name)
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
        return {ours: self.take(name, heads) for ours, name in written_out(table, layers).items()}

    def take_linear(self, name: str) -> dict[str, Tensor]:
        return {end: self.take(f"{name}.{end}") for end in ENDS}

    def count(self, pattern: str) -> int:
        """How many of the names pattern.format(0), pattern.format(1), ... there are; 1 if none."""
        number = 0
        while pattern.format(number) in self.tensors:
            number += 1
        return max(1, number)

    def check_all_read(self, unused: tuple[str, ...] = ()) -> None:
        """`unused`: how names end of tensors that have no effect in their model."""
        unknown = sorted(name for name in self.unread if not name.endswith(unused))
        if unknown:
            raise UserError(
                f"{len(unknown)} tensors of the checkpoint are unknown in {self.package}: got "
                f"{_listed(unknown)}. Remove them, or convert the part that is a Linformer with "
                "prefix=."
            )


def built(
    kind: str, values: dict[str, Any], tensors: dict[str, Tensor], *, as_model: bool = False
) -> Any:
    """The module of ours with these values of LinformerConfig and these tensors.

    kind: attention (whose tensors have the names of LinformerAttention), encoder, model, masked_lm.
    as_model: an encoder as LinformerModel, which reads vectors through the identity.
    """
    if kind == "attention" and as_model:
        raise UserError("one attention layer is no model that can be saved: leave as_model False.")
    like = next(iter(tensors.values()))
    if kind == "attention":
        values = values | {"num_hidden_layers": 1, "intermediate_size": 1}
    elif kind == "encoder":
        size = values["hidden_size"]
        values = values | {"feature_size": size, "position_embedding_type": "none"}
        tensors = tensors | {
            "embeddings.feature_projection.weight": torch.eye(size).to(like),
            "embeddings.feature_projection.bias": torch.zeros(size).to(like),
        }
    elif kind == "masked_lm":
        tensors = {n if n.startswith(HEAD) else f"linformer.{n}": t for n, t in tensors.items()}
    with user_input("the tensors of the checkpoint do not fit each other"):
        config = models.LinformerConfig(**values)
        module: Any
        if kind == "attention":
            layer: Any = LinformerEncoder(**config.encoder_arguments()).layers[0]
            module = layer.attention
        else:
            lm = kind == "masked_lm"
            module = models.LinformerForMaskedLM(config) if lm else models.LinformerModel(config)
        module.to(like.dtype).load_state_dict({n: t.clone() for n, t in tensors.items()})
    module.eval()
    return module.encoder if kind == "encoder" and not as_model else module


# No earlier implementation has token types, and all cut E off for shorter inputs.
COMMON: dict[str, Any] = {
    "type_vocab_size": 0,
    "keep_scale": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "dropout_kind": "weights",
}
# What a model must be to be expressed in any of them, in the names of `settings_of`.
ALLOWED: dict[str, Sequence[Any]] = {
    "norm_eps": (1e-5,),
    "bias": (True,),
    "positions": ("none",),
    "neighbours": (0,),
    "moving_average": (False,),
    "projection": ("linear", "fixed"),
    "window": (0,),
    "global_tokens": (0,),
    "position_embedding_type": ("learned",),
    "type_vocab_size": (0,),
    "embedding_size": (None,),
}


def written_out(table: Table, layers: int) -> Table:
    """The table with every layer and every `.*` written out."""
    result: Table = {}
    for i in range(layers):
        numbers = {"{i}": i, "{2i}": 2 * i, "{2i+1}": 2 * i + 1}
        pairs = list(table.items())
        for sign, number in numbers.items():
            pairs = [(a.replace(sign, str(number)), b.replace(sign, str(number))) for a, b in pairs]
        result |= expand(dict(pairs), 1)
    return result


def prefixed(table: Table, ours: str, theirs: str) -> Table:
    return {ours + a: theirs + b for a, b in table.items()}


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
    matrices: list[Tensor], *, alone: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What follows from E and F of each layer: values of LinformerConfig, and tensors.

    alone: of one attention layer.
    """
    sharing, weights = share(matrices)
    ks = [each.shape[-2] for each in matrices]
    values = {
        "projection": "linear",
        "sharing": sharing,
        "k": ks[0] if len(set(ks)) == 1 else ks,
        "max_position_embeddings": matrices[0].shape[-1],
    }
    place = "" if alone else "encoder." if sharing == "layerwise" else ATTENTION
    name = f"{place}projection.weight"
    return values, {name.replace("{i}", str(i)): each for i, each in enumerate(weights)}


def given_back(
    model: Any,
    table: Table,
    words: Table,
    allowed: Mapping[str, Any],
    *,
    package: str,
    lm: str = "",
    e_bias: bool = False,
) -> tuple[dict[str, Any], dict[str, Tensor], list[tuple[Tensor, Tensor]]]:
    """The way back: the settings of a model, its tensors under their names, and its E and F.

    E and F of each layer are (2, T, K, N), with their biases (2, T, K). `words` is the table of the
    embeddings and logits, `lm` the prefix of an encoder inside their language model, `e_bias` tells
    whether their E has a bias. Whatever has no counterpart is refused.
    """
    has_words = isinstance(model, models.LinformerForMaskedLM)
    encoder = model.linformer.encoder if has_words else model
    if not isinstance(encoder, LinformerEncoder):
        raise UserError(
            f"LinformerEncoder and LinformerForMaskedLM can be expressed in {package}: got "
            f"{type(model).__name__}."
        )
    settings = settings_of(encoder, model.config if has_words else None)
    check_settings(settings, ALLOWED | dict(allowed), package=package)
    own = model.state_dict()
    own = {n.removeprefix("linformer.") if has_words else f"encoder.{n}": t for n, t in own.items()}
    full = prefixed(table, "", lm if has_words else "") | (words if has_words else {})
    tensors: dict[str, Tensor] = {}
    for ours, theirs in written_out(full, settings["depth"]).items():
        tensor, heads = own.pop(ours), settings["num_heads"] if "{h}" in theirs else 1
        for h, rows in enumerate(tensor.chunk(heads)):
            tensors[theirs.replace("{h}", str(h))] = rows
    elsewhere = ("projection.weight", "positions.weight", *(["projection.bias"] if e_bias else []))
    for name, tensor in own.items():
        if not name.endswith(elsewhere) and bool(tensor.any()):
            raise UserError(
                f"{package} has no place for {name}, which is not zero. This model cannot be "
                "expressed there."
            )
    return settings, tensors, [] if settings["projection"] == "full" else _matrices(encoder)


def settings_of(encoder: Any, config: Any) -> dict[str, Any]:
    """What a model is, in the names of `LinformerEncoder` and, with a config, of that."""
    layers = list(encoder.layers)
    first = layers[0].attention

    def of_all(name: str) -> Any:
        values = sorted({getattr(layer.attention, name) for layer in layers})
        return values[0] if len(values) == 1 else values

    names = ("position_embedding_type", "type_vocab_size", "embedding_size", "lm_transform")
    words = {} if config is None else {name: getattr(config, name) for name in names}
    if config is not None:
        words |= {"embedding_norm": config.norms_embeddings, "vocab_size": config.vocab_size}
        words["position_embedding_type"] = config.positions
    return words | {
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
        "moving_average": encoder.moving_average is not None,
        "projection": of_all("kind"),
        "sharing": first.sharing,
        "k": [layer.attention.k for layer in layers],
        "window": of_all("window"),
        "global_tokens": of_all("global_tokens"),
    }


def check_settings(
    settings: Mapping[str, Any], allowed: Mapping[str, Any], *, package: str
) -> None:
    """Refuse what the other package has no counterpart of."""
    for name, values in allowed.items():
        if name in settings and settings[name] not in values:
            raise UserError(
                f"{package} has only {name}={' or '.join(map(repr, values))}: got "
                f"{settings[name]!r}. This model cannot be expressed there."
            )


def _matrices(encoder: Any) -> list[tuple[Tensor, Tensor]]:
    found = []
    for layer in encoder.layers:
        own, k = layer.attention.projection or encoder.projection, layer.attention.k
        weight = own._first_rows(None if own.k == k else k).detach()
        biased = isinstance(own, BiasedProjection)
        bias = own.bias[:, :, :k] if biased else weight.new_zeros(weight.shape[:3])
        found.append((weight.expand(2, -1, -1, -1), bias.detach().expand(2, -1, -1)))
    if own.keep_scale:
        warnings.warn(
            "the model has keep_scale=True, which the other package has not: outputs are equal "
            "for unpadded inputs of max_length only.",
            stacklevel=4,
        )
    return found


def _listed(names: Iterable[Any]) -> str:
    names = list(map(str, names))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
