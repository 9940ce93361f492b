"""The variants of a comparison: their settings and names."""

from __future__ import annotations

import itertools
import json
import math
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config import limits, yaml_text
from ..errors import UserError, user_input
from ..evidence.report.verdict import without_effect
from .names import folder_names, short_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXED = ("run", "data.cache")  # where files are kept: not what is compared
OPENING, CLOSING, QUOTES = "[{", "]}", "\"'"


class Setting(NamedTuple):
    """A key and its value: as it was typed, and as YAML reads it."""

    key: str
    text: str
    value: Any

    @property
    def override(self) -> str:
        return f"{self.key}={self.text}"


@dataclass(frozen=True)
class Variant:
    """What a variant sets, its name in tables and the name of its folder."""

    name: str
    folder: str
    settings: tuple[Setting, ...]

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(setting.override for setting in self.settings)


class Variants(NamedTuple):
    """The variants in the order given, and what was left out and why."""

    chosen: list[Variant]
    notes: list[str]


def variants(vary: Sequence[str]) -> Variants:
    """All combinations; each different run once."""
    if not vary:
        raise UserError("compare needs at least one --vary, for example --vary model.k=64,128.")
    notes: list[str] = []
    axes = [_axis(one, notes) for one in vary]
    keys = [axis[0].key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{key} is varied twice: give all its values in one --vary.")
    count = math.prod(map(len, axes))
    if count > limits.REPEATS:
        raise UserError(
            f"a comparison has at most {limits.REPEATS:,} variants: got {count:,}. Give fewer "
            "values in --vary."
        )
    combinations: dict[tuple[str, ...], tuple[Setting, ...]] = {}
    for combination in itertools.product(*axes):
        idle = without_effect({setting.key: setting.value for setting in combination})
        kept = tuple(setting for setting in combination if setting.key not in idle)
        combinations.setdefault(tuple(setting.override for setting in kept), kept)
    short = short_keys(keys)
    chosen = list(combinations.values())
    folders = folder_names([[(short[s.key], s.text) for s in settings] for settings in chosen])
    return Variants(
        [
            Variant(", ".join(f"{short[s.key]} {s.text}" for s in settings), folder, settings)
            for settings, folder in zip(chosen, folders, strict=True)
        ],
        notes,
    )


def _axis(vary: str, notes: list[str]) -> list[Setting]:
    """The values of one `--vary key=value,value`; equal ones once."""
    _check_characters(vary)
    key, equals, text = vary.partition("=")
    key = key.strip()
    texts = [part.strip() for part in _split(text, vary)]
    if not equals or not key or not all(texts):
        raise UserError(f"--vary takes key=value,value: got {vary!r}.")
    if key in FIXED:
        raise UserError(
            f"--vary {key}: it cannot be varied, each variant has a folder of its own. "
            "Name the folder of the comparison with --out."
        )
    found: dict[str, Setting] = {}
    for one in texts:
        value, same = _parsed(key, one)
        setting = Setting(key, one, value)
        if same not in found:
            found[same] = setting
        elif one != found[same].text:
            notes.append(f"{setting.override} is the same as {found[same].override}: trained once.")
    return list(found.values())


def _parsed(key: str, text: str) -> tuple[Any, str]:
    """The value, and its canonical text."""
    with user_input(f"--vary {key}={text}"):
        try:
            value = yaml_text.parse(text)
        except UserError as error:
            raise UserError(f"--vary {key}={text}: {error}") from error
        return value, json.dumps(value, sort_keys=True, default=str)


def _split(text: str, vary: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, start, depth, quote = [], 0, 0, ""
    before = ","  # the last character that is not a space
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES and before in ",:" + OPENING:
            quote = character  # elsewhere it is an apostrophe
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
            if depth < 0:
                raise UserError(f"--vary {vary}: a bracket is closed that was not opened.")
        elif character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
        before = before if character.isspace() else character
    if depth or quote:
        raise UserError(f"--vary {vary}: a bracket or a quote is not closed.")
    return [*parts, text[start:]]


def _check_characters(vary: str) -> None:
    for character in vary:
        kind = unicodedata.category(character)
        if kind == "Cs":
            raise UserError(f"--vary takes text in UTF-8: got {vary!r}.")
        if kind in ("Cc", "Zl", "Zp"):
            raise UserError(f"--vary takes no control character: got {character!r} in {vary!r}.")
