"""Plots of a comparison. They read records and never run a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import StrMethodFormatter

from .variants import MAKES_FULL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STYLE: Any = {
    "figure.dpi": 120,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}
VANILLA = "#333333"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#a6761d")
AXES = {"step": "steps", "seconds": "seconds of training"}
LOGARITHMIC = ("perplexity",)
PLAIN = StrMethodFormatter("{x:,g}")  # not powers of ten


def plot_curves(records: Sequence[dict[str, Any]], home: Path) -> Path:
    """Validation metrics over steps and over time, one row a metric."""
    names = _metrics(records)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(names), 2, figsize=(10, 3.4 * len(names)), squeeze=False, layout="constrained"
        )
        for row, name in zip(axes, names, strict=True):
            for axis, over in zip(row, AXES, strict=True):
                for record, style in zip(records, _styles(records), strict=True):
                    points = [(p[over], p[name]) for p in record["curve"] if name in p]
                    axis.plot(*zip(*points, strict=True), label=record["variant"], **style)
                axis.set_xlabel(AXES[over])
                axis.set_ylabel(f"validation {name.replace('_', ' ')}")
                if name in LOGARITHMIC:
                    axis.set_yscale("log")
                    axis.yaxis.set_major_formatter(PLAIN)
                    axis.yaxis.set_minor_formatter(PLAIN)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        return _save(figure, home / "curves.png")


def plot_over(records: Sequence[dict[str, Any]], home: Path) -> list[Path]:
    """The final metrics over each key that was varied, vanilla as a line across."""
    keys = sorted({key for record in records for key in record["set"]})
    made = []
    for key in keys:
        shown = [record for record in records if key in record["set"] and not record["full"]]
        if len({record["set"][key] for record in shown}) < 2:
            continue
        made.append(_plot_key(key, shown, records, home))
    return made


def _plot_key(
    key: str, shown: list[dict[str, Any]], records: Sequence[dict[str, Any]], home: Path
) -> Path:
    names = _metrics(records)
    vanilla = [record for record in records if record["full"]]
    numeric = all(_is_number(record["set"][key]) for record in shown)
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in shown:
        groups.setdefault(_others(record, key), []).append(record)

    def points(group: Sequence[dict[str, Any]], name: str) -> list[Any]:
        found = sorted(
            (float(r["set"][key]) if numeric else r["set"][key], _of(r, name)) for r in group
        )
        return list(zip(*found, strict=True))

    panels = [*names, "step_seconds"]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(4 * len(panels), 3.4), squeeze=False, layout="constrained"
        )
        for axis, name in zip(axes[0], panels, strict=True):
            for colour, (label, group) in zip(COLOURS * 9, groups.items(), strict=False):
                axis.plot(*points(group, name), "o-", color=colour, label=label or None)
            moving = [record for record in vanilla if key in record["set"]]
            if moving:
                axis.plot(*points(moving, name), "o--", color=VANILLA, label="vanilla")
            for record in vanilla:
                if key not in record["set"]:
                    label = f"vanilla {_others(record, *MAKES_FULL)}".rstrip()
                    axis.axhline(_of(record, name), color=VANILLA, ls="--", label=label)
            axis.set_xlabel(key.rpartition(".")[2])
            axis.set_ylabel("seconds a step" if name == "step_seconds" else name.replace("_", " "))
            if name == "step_seconds":
                axis.set_ylim(bottom=0)
        handles, labels = axes[0][0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside right upper")
        return _save(figure, home / f"over-{key.rpartition('.')[2]}.png")


def _others(record: dict[str, Any], *keys: str) -> str:
    """What a variant sets beside these keys."""
    others = {key: value for key, value in record["set"].items() if key not in keys}
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in others.items())


def _of(record: dict[str, Any], name: str) -> float:
    return float(record["step_seconds"] if name == "step_seconds" else record["metrics"][name])


def _metrics(records: Sequence[dict[str, Any]]) -> list[str]:
    wanted = ("perplexity", "bits_per_byte", "accuracy", "macro_f1")
    return [
        name
        for name in wanted
        if all(name in record["metrics"] and record["curve"] and name in record["curve"][0]
               for record in records)
    ] or ["loss"]  # fmt: skip


def _styles(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    colours = iter(COLOURS * len(records))
    return [
        {"color": VANILLA, "ls": "--", "lw": 2} if record["full"] else {"color": next(colours)}
        for record in records
    ]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path)
    plt.close(figure)
    return path
