"""A YAML file and `key=value` overrides become a `RunConfig`, or one line says what is wrong."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

from ..errors import UserError, cut, shown, user_input
from . import limits, shipped, yaml_text
from .model_keys import check_model_keys
from .model_section import ModelSection
from .schema import DataSection, EvaluateSection, RunConfig, Task, TokenizerSection, TrainSection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataSection,
    "tokenizer": TokenizerSection,
    "model": ModelSection,
    "train": TrainSection,
    "evaluate": EvaluateSection,
}
_KEY_ERRORS = ("extra_forbidden", "invalid_key")  # told before errors of values


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a configuration; each override is `section.key=value`, the value as in YAML."""
    values = read(path)
    for override in overrides:
        set_key(values, override)
    return check(values, where=str(path))


def read(path: Path) -> dict[str, Any]:
    """The values of a configuration file, or of a shipped one by its name, as written there."""
    with user_input(f"cannot read the configuration {path}"):
        path = shipped.resolve(path)
        if path.exists() and not path.is_file():  # a pipe would wait for someone to write
            raise UserError(f"the configuration {path} is not a regular file.")
        with path.open("rb") as file:
            content = file.read(limits.FILE + 1)
    if len(content) > limits.FILE:
        raise UserError(
            f"the configuration {path} must have at most {limits.FILE:,} bytes: it has more."
        )
    try:
        values = yaml_text.parse(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"the configuration {path} is not UTF-8, byte {error.start}.") from error
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: a configuration is a mapping of keys: got {_received(values)}.")
    return values


def set_key(values: dict[str, Any], override: str) -> None:
    """Apply `section.key=value` in place."""
    name, equals, text = override.partition("=")
    *parents, last = name.split(".")
    if not equals or not all((*parents, last)):
        raise UserError(
            f"an override is key=value, for example train.steps=100: got {cut(override)!r}."
        )
    place = values
    for parent in parents:
        inner = place.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UserError(
                f"{cut(name)}: {cut(parent)} holds a single value, not keys of its own."
            )
        place = inner
    try:
        place[last] = yaml_text.parse(text)
    except UserError as error:
        raise UserError(f"the override {cut(override)!r}: {error}") from error


def check(values: dict[str, Any], *, where: str) -> RunConfig:
    """The typed configuration; the first mistake is named with its key."""
    try:
        if values.get("task") in get_args(Task) and isinstance(values.get("model"), dict):
            check_model_keys(values["task"], map(str, values["model"]))
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error)}") from error
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def resolved(config: RunConfig) -> dict[str, Any]:
    """Every key with its value, as plain data; the model's as they were given."""
    return config.model_dump(mode="json")


def all_keys() -> list[str]:
    """Every valid key, with dots."""
    names = [name for name in RunConfig.model_fields if name not in SECTIONS]
    for section, kind in SECTIONS.items():
        names += [f"{section}.{field.alias or name}" for name, field in kind.model_fields.items()]
    return names


def _explain(error: ValidationError) -> str:
    errors = error.errors()
    first = next((e for e in errors if e["type"] in _KEY_ERRORS), errors[0])
    # Parts in brackets are the names of alternatives, not keys.
    place = tuple(str(part) for part in first["loc"] if not str(part).startswith("("))
    name = cut(".".join(place))
    if first["type"] == "extra_forbidden":
        return _unknown(place)
    if first["type"] == "invalid_key":
        return f"a key is text: got {name}."
    if first["type"] == "missing":
        return f"the key {name!r} is missing."
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "model_type":
        message = "must be a section with keys of its own"
    if not place:
        return message
    received = first["input"]
    if not message.endswith("."):
        message += "."
    rule = message[0].lower() + message[1:-1]
    return f"{name}: {rule}: got {_received(received)}."


def _unknown(place: tuple[str, ...]) -> str:
    name = cut(".".join(place))
    known = all_keys()
    section = place[0] + "." if len(place) > 1 else ""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not near:  # the right word in the wrong section
        ends = {key.rpartition(".")[2]: key for key in known}
        found = difflib.get_close_matches(cut(place[-1]), ends, n=1, cutoff=0.6)
        near = [ends[found[0]]] if found else []
    if near:
        return f"unknown key {name!r}. Did you mean {near[0]!r}?"
    there = [key for key in known if key.startswith(section)] if section else known
    return f"unknown key {name!r}. There are: {', '.join(there)}."


def _received(value: Any) -> str:
    return "nothing" if value is None else shown(value)
