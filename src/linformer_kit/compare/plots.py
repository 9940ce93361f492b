"""Plots of a comparison. They read records and never run a model."""

from __future__ import annotations

import io
import statistics
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import StrMethodFormatter

from ..core.projection_kinds import PROJECTIONS, SHARINGS
from .names import safe, short_keys
from .variants import MAKES_FULL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .verdict import Group

STYLE: Any = {
    "figure.dpi": 120,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "text.parse_math": False,  # a $ in a name is a $
}
VANILLA = "#333333"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d")
AXES = {"step": "steps", "seconds": "seconds of training"}
METRICS = ("perplexity", "bits_per_byte", "accuracy", "macro_f1")
LOGARITHMIC = ("perplexity",)
PLAIN = StrMethodFormatter("{x:,g}")  # not powers of ten
COSTS = {
    "step_seconds": ("seconds a step", 1.0),
    "memory": ("peak memory, MB", 1e-6),
    "projection_parameters": ("parameters in E and F", 1.0),
}
# Values that have an order of their own: of sharing, from least to most.
ORDERS = {
    "model.sharing": SHARINGS,
    "model.context_sharing": SHARINGS,
    "model.projection": PROJECTIONS,
    "model.context_projection": PROJECTIONS,
}


def plot_curves(groups: Sequence[Group]) -> dict[str, bytes]:
    """Validation metrics over steps and over time, one row a metric, one line a run."""
    names = [name for name in _metrics(groups) if _in_curves(groups, name)]
    if not names:
        return {}
    with _drawing():
        figure, axes = plt.subplots(
            len(names), 2, figsize=(10, 3.4 * len(names)), squeeze=False, layout="constrained"
        )
        lines = []
        for row, name in zip(axes, names, strict=True):
            for axis, over in zip(row, AXES, strict=True):
                lines = [
                    axis.plot(*_curve(run, over, name), **style)[0]
                    for group, style in zip(groups, _styles(groups), strict=True)
                    for run in group.runs.values()
                ]
                axis.set_xlabel(AXES[over])
                axis.set_ylabel(f"validation {name.replace('_', ' ')}")
                if name in LOGARITHMIC:
                    axis.set_yscale("log")
                    axis.yaxis.set_major_formatter(PLAIN)
                    axis.yaxis.set_minor_formatter(PLAIN)
        owners = [group.name for group in groups for _ in group.runs]
        named = dict(zip(owners, lines, strict=True))  # one entry for all seeds of a variant
        figure.legend(named.values(), map(_label, named), loc="outside upper center", ncols=2)
        return {"curves.png": _png(figure)}


def plot_over(groups: Sequence[Group]) -> dict[str, bytes]:
    """The final metrics and the costs over each key that was varied; vanilla as a line across."""
    keys = list(dict.fromkeys(key for group in groups for key in group.first["set"]))
    short = short_keys(keys)
    found = {}
    for key in keys:
        shown = [group for group in groups if key in group.first["set"] and not group.first["full"]]
        if len({group.first["set"][key] for group in shown}) > 1:
            found[plot_name(short[key])] = _plot_key(key, short, shown, groups)
    return found


def plot_name(short_key: str) -> str:
    return f"over-{safe(short_key)}.png"


def plot_names(keys: Sequence[str]) -> list[str]:
    """Every file that plots of these varied keys may have."""
    return ["curves.png", *(plot_name(short) for short in short_keys(keys).values())]


def ordered(key: str, values: Sequence[str]) -> list[str]:
    """Different values from left to right: numbers by size, else by meaning, else as given."""
    known = list(dict.fromkeys(values))
    if all(map(_is_number, known)):
        return sorted(known, key=float)
    order = ORDERS.get(key)
    if order is not None and set(known) <= set(order):
        return sorted(known, key=order.index)
    return known


def _plot_key(
    key: str, short: dict[str, str], shown: Sequence[Group], groups: Sequence[Group]
) -> bytes:
    vanilla = [group for group in groups if group.first["full"]]
    values = ordered(
        key, [group.first["set"][key] for group in groups if key in group.first["set"]]
    )
    numeric = all(map(_is_number, values))
    place = {value: float(value) if numeric else at for at, value in enumerate(values)}
    families: dict[str, list[Group]] = {}
    for group in shown:
        families.setdefault(_others(group, short, key), []).append(group)
    panels = [
        *_metrics(groups),
        *(name for name in COSTS if all(group.first.get(name) is not None for group in groups)),
    ]
    with _drawing():
        across = min(3, len(panels))
        down = -(-len(panels) // across)
        figure, axes = plt.subplots(
            down, across, figsize=(4 * across, 3.4 * down), squeeze=False, layout="constrained"
        )
        named: dict[str, Any] = {}
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        for axis, name in zip(axes.flat, panels, strict=False):
            moving = [group for group in vanilla if key in group.first["set"]]
            lines = [*families.items(), *([("vanilla", moving)] if moving else [])]
            for number, (label, family) in enumerate(lines):
                points = sorted((place[g.first["set"][key]], *_of(g, name)) for g in family)
                x, y, error = zip(*points, strict=True)
                is_vanilla = family is moving
                named[label] = axis.errorbar(
                    x,
                    y,
                    yerr=error if any(error) else None,
                    color=VANILLA if is_vanilla else COLOURS[number % len(COLOURS)],
                    fmt="o--" if is_vanilla else "o-",
                    capsize=3,
                )
            for group in vanilla:
                if key not in group.first["set"]:
                    label = f"vanilla {_others(group, short, *MAKES_FULL)}".rstrip()
                    named[label] = axis.axhline(_of(group, name)[0], color=VANILLA, ls="--")
            axis.set_xlabel(short[key])
            if not numeric:
                axis.set_xticks(range(len(values)), values)
                axis.set_xmargin(0.1)
            axis.set_ylabel(COSTS[name][0] if name in COSTS else name.replace("_", " "))
            if name in COSTS:
                axis.set_ylim(0, 1.1 * max(_of(group, name)[0] for group in groups) or 1)
        named.pop("", None)  # one family alone needs no name
        if named:
            figure.legend(named.values(), map(_label, named), loc="outside right upper")
        return _png(figure)


def _others(group: Group, short: dict[str, str], *keys: str) -> str:
    """What a variant sets beside these keys."""
    others = {key: value for key, value in group.first["set"].items() if key not in keys}
    return ", ".join(f"{short[key]} {value}" for key, value in others.items())


def _of(group: Group, name: str) -> tuple[float, float]:
    """Mean and standard deviation over the seeds."""
    if name in COSTS:
        return group.first[name] * COSTS[name][1], 0.0
    values = group.values(name)
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _metrics(groups: Sequence[Group]) -> list[str]:
    """The metrics that every run has."""
    runs = [run for group in groups for run in group.runs.values()]
    found = [name for name in METRICS if all(name in run["metrics"] for run in runs)]
    return found or [name for name in ("loss",) if all(name in run["metrics"] for run in runs)]


def _in_curves(groups: Sequence[Group], name: str) -> bool:
    runs = [run for group in groups for run in group.runs.values()]
    return all(any(name in point for point in run["curve"]) for run in runs)


def _curve(run: dict[str, Any], over: str, name: str) -> Any:
    return zip(*((p[over], p[name]) for p in run["curve"] if name in p), strict=True)


def _styles(groups: Sequence[Group]) -> list[dict[str, Any]]:
    colours = iter(COLOURS * len(groups))
    return [
        {"color": VANILLA, "ls": "--", "lw": 2} if group.first["full"] else {"color": next(colours)}
        for group in groups
    ]


def _label(name: str) -> str:
    """matplotlib leaves out names that begin with an underscore."""
    return f"\u200b{name}" if name.startswith("_") else name


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextmanager
def _drawing() -> Iterator[None]:
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    plt.close(figure)
    return file.getvalue()
