"""A figure as plain data. What it looks like is up to `interactive.py` and `pictures.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST, MOST = 1e-300, 1e300  # beyond them a logarithmic axis has no ticks
Dash = Literal["solid", "dash", "dot"]
Scale = Literal["linear", "log"]

# Distinguishable by colour-blind readers, legible on white and on near-black.
OURS = ("#0f9d8a", "#2f7fd6", "#8a5fd6", "#c25fb0", "#6f7f8f")  # Linformer, by rising k
VANILLA = "#e8743b"
MATERIALISED = "#c2455f"
OTHERS = ("#d79a1e", "#8a9a2b", "#b06ab3", "#7d8597", "#5f9ea0", "#c97b63", "#6b8e23", "#a0627a")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """`ticks` are (value, label); without them a chart chooses."""

    title: str
    scale: Scale = "linear"
    ticks: tuple[tuple[float, str], ...] = ()
    range: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points, joined unless `joined` is False. `labels` are shown when pointed at."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: str
    dash: Dash = "solid"
    labels: tuple[str, ...] = ()
    errors: tuple[float, ...] = ()  # half the lengths of error bars
    joined: bool = True
    marked: bool = True


@dataclass(frozen=True, kw_only=True)
class Titled:
    """What every figure has; `name` is that of its files, `machine` what it was measured on."""

    name: str
    title: str
    caption: str
    machine: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart(Titled):
    """Lines and points in two axes."""

    x: Axis
    y: Axis
    lines: tuple[Line, ...]

    def __post_init__(self) -> None:
        for name in ("x", "y"):
            axis: Axis = getattr(self, name)
            if axis.scale == "log" and not axis.ticks:
                used = [value for line in self.lines for value in getattr(line, name)]
                object.__setattr__(self, name, replace(axis, ticks=log_ticks(used)))


@dataclass(frozen=True, kw_only=True)
class HeatMap(Titled):
    """values[row][column]; `labels` likewise, shown when pointed at."""

    x: Axis
    y: Axis
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    labels: tuple[tuple[str, ...], ...] = ()
    unit: str = ""
    range: tuple[float, float] | None = None
    diverging: bool = False  # centre the colours at zero
    written: bool = False  # write the labels into the cells


@dataclass(frozen=True, kw_only=True)
class Group:
    """One colour of bars; None leaves a gap."""

    name: str
    values: tuple[float | None, ...]
    colour: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BarChart(Titled):
    """Groups of horizontal bars, one group a category."""

    value: Axis
    categories: tuple[str, ...]
    groups: tuple[Group, ...]


Figure = Chart | HeatMap | BarChart


@dataclass(frozen=True, kw_only=True)
class Panels:
    """Charts side by side with one legend; for pictures only."""

    name: str
    charts: tuple[Chart, ...]
    columns: int


def length_ticks(lengths: list[int]) -> tuple[tuple[float, str], ...]:
    """Powers of two as people write them: 512, 1k, 64k."""
    return tuple((float(n), f"{n // 1024}k" if n % 1024 == 0 else f"{n}") for n in sorted(lengths))


def log_ticks(values: Iterable[float]) -> tuple[tuple[float, str], ...]:
    """Three to eight round numbers along a logarithmic axis, however little of it is used."""
    used = [value for value in values if LEAST < value < MOST]
    if not used:
        return ()
    low, high = min(used) / 1.1, max(used) * 1.1
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        found = [d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high]
        if len(found) >= 3:
            step = -(-len(found) // 8)
            return _labelled(found[::step])
    size = 10.0 ** math.floor(math.log10((high - low) / 3))
    step_size = next(size * d for d in (1, 2, 5, 10) if (high - low) / (size * d) <= 6)
    first = math.ceil(low / step_size)
    return _labelled([step_size * i for i in range(first, math.floor(high / step_size) + 1)])


def _labelled(values: list[float]) -> tuple[tuple[float, str], ...]:
    return tuple((value, f"{float(f'{value:.3g}'):,.10g}") for value in values)
