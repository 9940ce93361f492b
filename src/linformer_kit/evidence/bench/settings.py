"""Settings of a benchmark: a dataclass whose fields define the command line options.

Imports no torch: the help and every invalid value are reported at once.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...config import limits
from ...errors import one_of
from ...machine_memory import require_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a setting is shown and checked.

    quick: its value with --quick, if another.
    low, high: range of a number, or of each number of a list.
    above, below: open ends of the range of a float.
    choices: the names that are allowed.
    names: of the option, where not that of the field; "--on/--off" for a flag with two names.
    """

    help: str
    quick: Any = None
    low: int | None = None
    high: int | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    envvar: str | None = None


def option(default: Any, about: str, **more: Any) -> Any:
    """A field of a settings class."""
    return field(default=default, metadata={"option": Option(help=about, **more)})


size = partial(option, low=1)
lengths = partial(size, about="Lengths n, with commas.", high=limits.LENGTH)
ks = partial(size, about="Projected lengths k, with commas.", high=limits.LENGTH)
k = partial(size, about="Projected length k.", high=limits.LENGTH)
window = partial(
    option, 0, "Positions on each side that are seen exactly.", low=0, high=limits.LENGTH
)
dim = partial(size, about="Width of the model.", high=limits.WIDTH)
heads = partial(size, about="Attention heads.", high=limits.WIDTH)
depth = partial(size, about="Layers.", high=limits.LAYERS)
batch = partial(size, about="Inputs at a time.", high=limits.BATCH)
rounds = partial(size, about="Rounds; fewer for runs of over a second.", high=1_000_000)


def threads(default: int = 2) -> Any:
    return size(default, about="Threads to compute with.", high=limits.THREADS)


memory = partial(
    option, True, about="Also measure peak memory, in processes.", names=("--memory/--no-memory",)
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure. Subclasses add fields, and `check` for rules about several of them."""

    seed: int = option(0, "Seed of weights and inputs.", low=0, high=2**32 - 1)

    def __post_init__(self) -> None:
        for one in fields(self):
            _check(one.name, getattr(self, one.name), one.metadata["option"])
        self.check()

    @property
    def points(self) -> list[Point]:
        """The sizes to measure, of a benchmark of encoders."""
        return []

    def check(self) -> None:
        """Refuse values that do not fit together."""
        for point in self.points:
            point.check_fits()

    @classmethod
    def with_defaults(cls: type[S], quick: bool, given: dict[str, Any]) -> S:
        """The given values over the defaults, or over those of --quick."""
        small = {one.name: one.metadata["option"].quick for one in fields(cls)} if quick else {}
        return cls(**({name: v for name, v in small.items() if v is not None} | given))


@dataclass(frozen=True, kw_only=True)
class Point:
    """The sizes of one measurement of an encoder."""

    dim: int
    num_heads: int
    k: int
    length: int
    batch: int = 1
    depth: int = 1
    window: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _check(name, value, Option(help="", low=0 if name == "window" else 1))
        check_heads(self.dim, self.num_heads)
        if self.k > self.length:
            raise ValueError(
                f"k must be at most the length, for it shortens: got k={self.k}, "
                f"length={self.length}. Use a smaller k, or longer inputs."
            )

    @property
    def ff_dim(self) -> int:
        return 4 * self.dim

    def as_record(self) -> dict[str, int]:
        """The sizes; without a window as they were before there was one."""
        return {name: size for name, size in asdict(self).items() if name != "window" or size}

    def check_fits(self) -> None:
        """Refuse sizes beyond the machine's memory: input, output, E and the weights alone."""
        check_memory(
            values=2 * self.batch * self.length * self.dim
            + self.depth * 12 * self.dim**2
            + self.k * self.length,
            length=self.length,
            k=self.k,
            dim=self.dim,
            batch=self.batch,
            depth=self.depth,
        )


def check_heads(dim: int, heads: int) -> None:
    if dim % heads:
        raise ValueError(
            f"dim must be divisible by the number of heads: got dim={dim}, heads={heads}. "
            "Change one of them."
        )


def check_memory(*, values: int, **sizes: int) -> None:
    """Refuse sizes that need more float32 values than the machine has memory for."""
    what = ", ".join(f"{name}={value}" for name, value in sizes.items())
    require_memory(what, 4 * values, remedy="Use smaller sizes.")


def check_includes(name: str, chosen: Sequence[str], reference: str) -> None:
    if reference not in chosen:
        raise ValueError(
            f"the others are compared with {reference!r}, so {name} must include it: got "
            f"{', '.join(chosen)}."
        )


def _check(name: str, value: Any, rule: Option) -> None:
    if isinstance(value, tuple):
        for one in value:
            _check(name, one, rule)
        return
    if rule.choices:
        one_of(name, value, rule.choices)
    if isinstance(value, bool | str):
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite: got {value:g}.")
    if rule.below is not None and not (rule.low or 0) <= value < rule.below:
        raise ValueError(
            f"{name} must be at least {rule.low or 0} and below {rule.below:g}: got {value}."
        )
    if rule.low is not None and value < rule.low:
        raise ValueError(f"{name} must be at least {rule.low}: got {value}.")
    if rule.high is not None and value > rule.high:
        raise ValueError(f"{name} must be at most {rule.high}: got {value}.")
    if rule.above is not None and not value > rule.above:
        raise ValueError(f"{name} must be more than {rule.above:g}: got {value:g}.")
