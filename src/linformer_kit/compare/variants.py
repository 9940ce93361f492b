"""Which configurations a comparison is made of."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

# What does nothing where nothing is shortened: such variants would be the same run twice.
WITHOUT_EFFECT = {
    "model.projection=full": ("model.k", "model.sharing", "model.keep_scale"),
    "model.causal_attention=full": ("model.num_slots", "model.window"),
}
MAKES_FULL = tuple(override.partition("=")[0] for override in WITHOUT_EFFECT)


@dataclass(frozen=True)
class Variant:
    """A name and the overrides it stands for."""

    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        short = (override.rpartition(".")[2] for override in self.overrides)
        return ", ".join(part.replace("=", " ") for part in short)

    @property
    def folder(self) -> str:
        return self.name.replace(", ", "-").replace(" ", "-").replace("/", "-")

    @property
    def full(self) -> bool:
        return any(override in WITHOUT_EFFECT for override in self.overrides)

    def value(self, key: str) -> str | None:
        """What this variant sets a key to."""
        for override in self.overrides:
            name, _, value = override.partition("=")
            if name == key:
                return value
        return None


def variants(vary: Sequence[str]) -> list[Variant]:
    """All combinations, each different run once, in the order given."""
    if not vary:
        raise UserError("compare needs at least one --vary, for example --vary model.k=64,128.")
    axes = []
    for axis in vary:
        key, equals, values = axis.partition("=")
        chosen = [value.strip() for value in values.split(",")]
        if not equals or not key or not all(chosen):
            raise UserError(f"--vary takes key=value,value: got {axis!r}.")
        axes.append([f"{key}={value}" for value in dict.fromkeys(chosen)])
    found: dict[tuple[str, ...], Variant] = {}
    for combination in itertools.product(*axes):
        idle = {key for one in combination for key in WITHOUT_EFFECT.get(one, ())}
        kept = tuple(one for one in combination if one.partition("=")[0] not in idle)
        found.setdefault(kept, Variant(kept))
    return list(found.values())
