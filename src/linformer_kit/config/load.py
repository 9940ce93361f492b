"""A YAML file and `key=value` overrides become a `RunConfig`, or one line says what is wrong."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from ..errors import UserError
from . import yaml_text
from .model_keys import check_model_keys
from .schema import DataSection, EvaluateSection, RunConfig, TokenizerSection, TrainSection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataSection,
    "tokenizer": TokenizerSection,
    "train": TrainSection,
    "evaluate": EvaluateSection,
}


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration; each override is `section.key=value`, the value as in YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the configuration {path} is not UTF-8, byte {error.start}.") from error
    try:
        values = yaml_text.parse(text)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: a configuration is a mapping of keys: got {_short(values)}.")
    for override in overrides:
        set_key(values, override)
    return check(values, where=str(path))


def set_key(values: dict[str, Any], override: str) -> None:
    """Apply `section.key=value` in place."""
    name, equals, text = override.partition("=")
    if not equals or not name:
        raise UserError(f"an override is key=value, for example train.steps=100: got {override!r}.")
    *parents, last = name.split(".")
    place = values
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UserError(f"{name}: {parent} holds a single value, not keys of its own.")
        place = inner
    place[last] = yaml_text.parse(text)


def check(values: dict[str, Any], *, where: str) -> RunConfig:
    """The typed configuration; the first mistake is named with its key."""
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error, values)}") from error
    try:
        check_model_keys(config.task, config.model.options)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return config


def resolved(config: RunConfig) -> dict[str, Any]:
    """Every key with its value, as plain data; the model's as they were given."""
    return config.model_dump(mode="json")


def all_keys() -> list[str]:
    """Every valid key, with dots."""
    names = [name for name in RunConfig.model_fields if name not in (*SECTIONS, "model")]
    for section, kind in SECTIONS.items():
        names += [f"{section}.{name}" for name in kind.model_fields]
    return names


def _explain(error: ValidationError, values: dict[str, Any]) -> str:
    errors = error.errors()
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    place = tuple(
        str(part)
        for part in first["loc"]
        if part not in ("str", "Sides", "list[str]", "int", "float", "bool")
    )
    name = ".".join(place)
    if first["type"] == "extra_forbidden":
        return _unknown(place)
    if first["type"] == "missing":
        return f"the key {name!r} is missing."
    message = first["msg"].removeprefix("Value error, ")
    if not place:
        return message
    received = first["input"]
    if not message.endswith("."):
        message += "."
    rule = message[0].lower() + message[1:-1]
    return f"{name}: {rule}: got {_short(received)}."


def _unknown(place: tuple[str, ...]) -> str:
    name = ".".join(place)
    known = all_keys()
    section = place[0] + "." if len(place) > 1 else ""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not near:  # the right word in the wrong section
        ends = {key.rpartition(".")[2]: key for key in known}
        found = difflib.get_close_matches(place[-1], ends, n=1, cutoff=0.6)
        near = [ends[found[0]]] if found else []
    if near:
        return f"unknown key {name!r}. Did you mean {near[0]!r}?"
    there = [key for key in known if key.startswith(section)] if section else known
    return f"unknown key {name!r}. There are: {', '.join(there)}."


def _short(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"{text} ({type(value).__name__})" if value is not None else "nothing"
