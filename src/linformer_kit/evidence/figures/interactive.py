"""Figures for the page, as data for plotly.js.

The page sets the colours of text, grid and background by its theme. Every text is escaped, and a
value that is not finite leaves a gap.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .figure import BarChart, Chart
from .text import for_plotly

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .figure import Axis, Figure, HeatMap, Line

Drawing = dict[str, Any]

SEQUENTIAL = [
    (0.0, "#f1f7f4"),
    (0.25, "#b6dfd3"),
    (0.5, "#5fbfae"),
    (0.75, "#1f8f92"),
    (1.0, "#0b4f6c"),
]
DIVERGING = [(0.0, "#c2455f"), (0.5, "#f4f4f2"), (1.0, "#0b7a75")]


def drawing(figure: Figure) -> Drawing:
    """data and layout of a plotly figure."""
    if isinstance(figure, Chart):
        data = [_line(line) for line in figure.lines]
        layout = {"xaxis": _axis(figure.x), "yaxis": _axis(figure.y), "hovermode": "closest"}
        return {"data": data, "layout": layout}
    if isinstance(figure, BarChart):
        return _bars(figure)
    return _heat_map(figure)


def library() -> str:
    """The source of plotly.js, to be put into the page."""
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return source


def _line(line: Line) -> Drawing:
    modes = [part for part, on in (("lines", line.joined), ("markers", line.marked)) if on]
    found: Drawing = {
        "type": "scatter",
        "mode": "+".join(modes) or "lines",
        "name": for_plotly(line.name),
        "x": _finite(line.x),
        "y": _finite(line.y),
        "line": {"color": line.colour, "dash": line.dash, "width": 2.4},
        "marker": {"color": line.colour, "size": 7 if line.joined else 12},
    }
    if line.errors:
        found["error_y"] = {"type": "data", "array": _finite(line.errors)}
    if line.labels:
        found |= {"text": _texts(line.labels), "hovertemplate": "%{text}<extra></extra>"}
    return found


def _axis(axis: Axis) -> Drawing:
    title = {"text": for_plotly(axis.title)}
    found: Drawing = {"title": title, "type": axis.scale, "automargin": True}
    if axis.ticks:
        found |= {
            "tickmode": "array",
            "tickvals": [value for value, _ in axis.ticks],
            "ticktext": _texts(label for _, label in axis.ticks),
        }
    elif axis.scale == "log":
        found |= {"dtick": 1, "exponentformat": "none"}
    if axis.range is not None:
        found["range"] = axis.range
    return found


def _bars(figure: BarChart) -> Drawing:
    data = []
    for group in figure.groups:
        bar: Drawing = {
            "type": "bar",
            "orientation": "h",
            "name": for_plotly(group.name),
            "y": _texts(figure.categories),
            "x": _finite(group.values),
            "marker": {"color": group.colour},
        }
        if group.labels:
            bar |= {
                "hovertext": _texts(group.labels),
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        data.append(bar)
    layout = {
        "xaxis": _axis(figure.value),
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "barmode": "group",
        "showlegend": len(figure.groups) > 1,
    }
    return {"data": data, "layout": layout}


def _heat_map(figure: HeatMap) -> Drawing:
    x, y = for_plotly(figure.x.title), for_plotly(figure.y.title)
    data: Drawing = {
        "type": "heatmap",
        "x": _texts(figure.columns),
        "y": _texts(figure.rows),
        "z": [_finite(row) for row in figure.values],
        "colorscale": DIVERGING if figure.diverging else SEQUENTIAL,
        "colorbar": {"title": {"text": for_plotly(figure.unit), "side": "right"}, "thickness": 12},
        "xgap": 1 if figure.written else 0,
        "ygap": 1 if figure.written else 0,
        "hovertemplate": f"{y} %{{y}}, {x} %{{x}}: %{{z:.3g}}<extra></extra>",
    }
    if figure.diverging:
        data["zmid"] = 0.0
    if figure.range is not None:
        data |= {"zmin": figure.range[0], "zmax": figure.range[1]}
    if figure.labels:
        data["text"] = [_texts(row) for row in figure.labels]
        if figure.written:
            data["texttemplate"] = "%{text}"
    layout = {
        "xaxis": {"title": {"text": x}, "type": "category", "automargin": True},
        "yaxis": {
            "title": {"text": y},
            "type": "category",
            "autorange": "reversed",
            "automargin": True,
        },
    }
    for axis, names in (("xaxis", figure.columns), ("yaxis", figure.rows)):
        if len(names) > 24:
            layout[axis]["nticks"] = 12
    return {"data": [data], "layout": layout}


def _texts(texts: Iterable[str]) -> list[str]:
    return [for_plotly(text) for text in texts]


def _finite(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None or not math.isfinite(value) else value for value in values]
