"""How a family of pretrained encoders is expressed as a Linformer: tables, no code.

A table maps our names of tensors to theirs. `{i}` stands for the number of a layer, and a name that
ends in `.*` for its weight and its bias. Every table can be read in both directions: one loads a
pretrained model, the other gives its tensors back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Table = dict[str, str]  # our name -> theirs


@dataclass(frozen=True, kw_only=True)
class Head:
    """One class of theirs and the class of `linformer_kit.models` that it becomes."""

    ours: str
    tensors: Table
    options: Mapping[str, Any] = field(default_factory=dict)  # of LinformerConfig


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture.

    prefix: of the encoder's tensors inside a model with a head.
    sizes: LinformerConfig's name -> their config's name, where the values are the same.
    required: values that their config must have; others are another architecture.
    tensors: of the encoder, without prefix.
    pooler: of the encoder's pooler, if it may have one.
    heads: by the end of their class name, such as "ForMaskedLM".
    first_position: the row of their position table that belongs to position 0.
    shared_layer: their layers have one set of weights, which each of ours gets.
    unused: tensors that have no effect in an encoder.
    """

    model_types: tuple[str, ...]
    prefix: str
    sizes: Table
    tensors: Table
    heads: Mapping[str, Head]
    required: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    pooler: Table = field(default_factory=dict)
    first_position: int = 0
    unused: tuple[str, ...] = ()


def expand(table: Table, layers: int) -> Table:
    """The table with every layer and every `.*` written out."""
    expanded: Table = {}
    for ours, theirs in table.items():
        numbers = range(layers) if "{i}" in ours else range(1)
        for i in numbers:
            pair = numbered(ours, i), numbered(theirs, i)
            if ours.endswith(".*"):
                for end in ("weight", "bias"):
                    expanded[pair[0][:-1] + end] = pair[1][:-1] + end
            else:
                expanded[pair[0]] = pair[1]
    return expanded


def numbered(name: str, i: int) -> str:
    """The name of layer i; `{2i}` and `{2i+1}` are for lists of two modules a layer."""
    for sign, number in (("{i}", i), ("{2i}", 2 * i), ("{2i+1}", 2 * i + 1)):
        name = name.replace(sign, str(number))
    return name
