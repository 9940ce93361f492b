"""The plots of a comparison as figures, made of its records."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from ..core.projection_kinds import PROJECTIONS, SHARINGS
from ..evidence.figures.figure import OTHERS, OURS, VANILLA, Axis, Chart, Line, Panels
from ..evidence.report.verdict import MAKES_FULL
from .names import safe, short_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..evidence.figures.figure import Scale
    from ..evidence.report.verdict import Group

COLOURS = (*OURS[:2], *OTHERS)
METRICS = ("perplexity", "bits_per_byte", "f1", "ndcg@10", "accuracy", "macro_f1")
LOGARITHMIC = ("perplexity",)
COSTS = {  # field of a record: title and unit of its axis
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


def plots(groups: Sequence[Group]) -> list[Panels]:
    """Validation metrics over steps and time; final metrics and costs over each varied key."""
    keys = list(dict.fromkeys(key for group in groups for key in group.first["set"]))
    short = short_keys(keys)
    found = _curves(groups)
    for key in keys:
        shown = [group for group in groups if key in group.first["set"] and not group.first["full"]]
        if len({group.first["set"][key] for group in shown}) > 1:
            found.append(_over_key(key, short, shown, groups))
    return found


def plot_names(keys: Sequence[str]) -> list[str]:
    """Every file that plots of these varied keys may have."""
    return ["curves.png", *(f"{_plot_name(short)}.png" for short in short_keys(keys).values())]


def ordered(key: str, values: Sequence[str]) -> list[str]:
    """Different values from left to right: numbers by size, else by meaning, else as given."""
    known = list(dict.fromkeys(values))
    if all(map(_is_number, known)):
        return sorted(known, key=float)
    order = ORDERS.get(key)
    if order is not None and set(known) <= set(order):
        return sorted(known, key=order.index)
    return known


def _plot_name(short_key: str) -> str:
    return f"over-{safe(short_key)}"


def _curves(groups: Sequence[Group]) -> list[Panels]:
    """One row a metric, one line a run."""
    runs = [run for group in groups for run in group.runs.values()]
    charts = []
    for name in _metrics(groups):
        if not all(any(name in point for point in run["curve"]) for run in runs):
            continue
        # Seconds are those of steps timed in turn: logged ones count other work of the machine.
        for title, timed in (("steps", False), ("seconds of training", True)):
            lines = []
            for number, group in enumerate(groups):
                for run in group.runs.values():
                    unit = run["step_seconds"] if timed else 1
                    points = [(p["step"] * unit, p[name], 0.0) for p in run["curve"] if name in p]
                    vanilla = group.first["full"]
                    lines.append(_line(group.name, points, number, vanilla=vanilla, marked=False))
            scale: Scale = "log" if name in LOGARITHMIC else "linear"
            y = Axis(title=f"validation {name.replace('_', ' ')}", scale=scale)
            charts.append(_chart(Axis(title=title), y, lines))
    return [Panels(name="curves", charts=tuple(charts), columns=2)] if charts else []


def _over_key(
    key: str, short: dict[str, str], shown: Sequence[Group], groups: Sequence[Group]
) -> Panels:
    """A panel for each metric and cost; vanilla as a line across where the key has no effect."""
    vanilla = [group for group in groups if group.first["full"]]
    values = ordered(
        key, [group.first["set"][key] for group in groups if key in group.first["set"]]
    )
    numeric = all(map(_is_number, values))
    place = {value: float(value) if numeric else float(at) for at, value in enumerate(values)}
    ends = min(place.values()), max(place.values())
    x = Axis(title=short[key])
    if not numeric:
        ticks = tuple((place[value], value) for value in values)
        x = Axis(title=short[key], ticks=ticks, range=(-0.2, len(values) - 0.8))
    families: dict[str, list[Group]] = {}
    for group in shown:
        families.setdefault(_others(group, short, key) or "Linformer", []).append(group)
    moving = [group for group in vanilla if key in group.first["set"]]
    charts = []
    for name in (
        *_metrics(groups),
        *(name for name in COSTS if all(group.first.get(name) is not None for group in groups)),
    ):
        lines = []
        for number, (label, family) in enumerate([*families.items(), ("vanilla", moving)]):
            points = sorted((place[g.first["set"][key]], *_value(g, name)) for g in family)
            if points:
                lines.append(_line(label, points, number, vanilla=family is moving))
        for group in vanilla:
            if key not in group.first["set"]:
                label = f"vanilla {_others(group, short, *MAKES_FULL)}".rstrip()
                points = [(end, _value(group, name)[0], 0.0) for end in ends]
                lines.append(_line(label, points, 0, vanilla=True, marked=False))
        title = COSTS[name][0] if name in COSTS else name.replace("_", " ")
        top = 1.1 * max(_value(group, name)[0] for group in groups) or 1.0
        y = Axis(title=title, range=(0.0, top) if name in COSTS else None)
        charts.append(_chart(x, y, lines))
    return Panels(name=_plot_name(short[key]), charts=tuple(charts), columns=3)


def _chart(x: Axis, y: Axis, lines: Sequence[Line]) -> Chart:
    return Chart(name="", title="", caption="", x=x, y=y, lines=tuple(lines))


def _line(
    name: str,
    points: Sequence[tuple[float, float, float]],
    number: int,
    *,
    vanilla: bool,
    marked: bool = True,
) -> Line:
    """Of points (x, y, error)."""
    x, y, errors = zip(*points, strict=True)
    return Line(
        name=name,
        x=x,
        y=y,
        errors=errors if any(errors) else (),
        colour=VANILLA if vanilla else COLOURS[number % len(COLOURS)],
        dash="dash" if vanilla else "solid",
        marked=marked,
    )


def _others(group: Group, short: dict[str, str], *keys: str) -> str:
    """What a variant sets besides these keys."""
    others = {key: value for key, value in group.first["set"].items() if key not in keys}
    return ", ".join(f"{short[key]} {value}" for key, value in others.items())


def _value(group: Group, name: str) -> tuple[float, float]:
    """Mean and standard deviation over the seeds."""
    if name in COSTS:
        return group.first[name] * COSTS[name][1], 0.0
    values = group.values(name)
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _metrics(groups: Sequence[Group]) -> list[str]:
    """The metrics that every run has; the loss if it has no other."""
    runs = [run for group in groups for run in group.runs.values()]
    common = [name for name in (*METRICS, "loss") if all(name in run["metrics"] for run in runs)]
    return [name for name in common if name != "loss"] or common


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
