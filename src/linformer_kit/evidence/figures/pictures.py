"""Figures as PNG and SVG files, for papers and slides; matplotlib needs no browser."""

from __future__ import annotations

import io
import math
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from .figure import BarChart, Chart, Panels
from .interactive import DIVERGING, SEQUENTIAL
from .text import for_legend, for_matplotlib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .figure import Axis, Figure, HeatMap

SIZE = (7.2, 4.4)
WIDE = 40  # characters of a name that has no room beside the axes
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "linformer-kit",  # the same figure is the same file
    "text.parse_math": False,  # a $ in a name is a $
}
MADE_BY = "linformer-kit figure"  # in every picture: such a file may be replaced
METADATA = {"png": {"Software": MADE_BY}, "svg": {"Date": None, "Creator": MADE_BY}}
DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def pictures(figure: Figure | Panels, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """The figure in each format, by the name of its file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    found = {}
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        canvas = Canvas(figsize=SIZE, layout="constrained")
        if isinstance(figure, Panels):
            _panels(figure, canvas)
        else:
            _single(figure, canvas)
        for kind in formats:
            file = io.BytesIO()
            canvas.savefig(file, format=kind, dpi=160, metadata=METADATA[kind])
            found[f"{figure.name}.{kind}"] = file.getvalue()
    return found


def _single(figure: Figure, canvas: Any) -> None:
    axes = canvas.add_subplot()
    title = for_matplotlib(figure.title)
    axes.set_title(title, fontsize=11, fontweight="bold", loc="left", wrap=True)
    if isinstance(figure, Chart):
        _chart(figure, axes)
        _chart_legend(figure, axes, canvas)
    elif isinstance(figure, BarChart):
        _bars(figure, axes)
    else:
        _heat_map(figure, axes, canvas)


def _panels(figure: Panels, canvas: Any) -> None:
    columns = min(figure.columns, len(figure.charts))
    rows = -(-len(figure.charts) // columns)
    canvas.set_size_inches(4.4 * columns, 3.4 * rows)
    handles: dict[str, Any] = {}  # by label: lines of the same name share one entry
    for number, chart in enumerate(figure.charts, start=1):
        axes = canvas.add_subplot(rows, columns, number)
        _chart(chart, axes)
        lines, labels = axes.get_legend_handles_labels()
        handles |= zip(labels, lines, strict=True)
    if len(handles) > 1:
        canvas.legend(handles.values(), handles, loc="outside upper left", ncols=2, fontsize=8.5)


def _chart(figure: Chart, axes: Any) -> None:
    for line in figure.lines:
        draw = partial(axes.errorbar, yerr=line.errors, capsize=3) if line.errors else axes.plot
        draw(
            line.x,
            line.y,
            label=for_legend(line.name),
            color=line.colour,
            linestyle=DASHES[line.dash] if line.joined else "none",
            marker="o" if line.marked else None,
            markersize=4.5 if line.joined else 8,
            linewidth=1.9,
        )
    _set_axis(axes.xaxis, figure.x, axes.set_xscale, axes.set_xlabel, axes.set_xlim)
    _set_axis(axes.yaxis, figure.y, axes.set_yscale, axes.set_ylabel, axes.set_ylim)


def _chart_legend(figure: Chart, axes: Any, canvas: Any) -> None:
    longest = max((len(line.name) for line in figure.lines), default=0)
    if longest > WIDE:
        canvas.set_figheight(SIZE[1] + 0.17 * len(figure.lines))
        canvas.legend(loc="outside lower left", fontsize=8.5)
    elif len(figure.lines) > 6:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8.5)
    elif len(figure.lines) > 1:
        axes.legend(fontsize=8.5)


def _set_axis(which: Any, axis: Axis, scale: Any, label: Any, limit: Any) -> None:
    scale(axis.scale)
    label(for_matplotlib(axis.title))
    if axis.ticks:
        from matplotlib.ticker import NullLocator

        which.set_minor_locator(NullLocator())
        places, names = zip(*axis.ticks, strict=True)
        which.set_ticks(places, list(map(for_matplotlib, names)))
    if axis.range is not None:
        limit(axis.range)


def _bars(figure: BarChart, axes: Any) -> None:
    thick = 0.8 / len(figure.groups)
    for number, group in enumerate(figure.groups):
        places = [place + number * thick for place in range(len(figure.categories))]
        values = [0.0 if value is None else value for value in group.values]
        name = for_legend(group.name)
        axes.barh(places, values, height=thick * 0.92, color=group.colour, label=name)
    middle = thick * (len(figure.groups) - 1) / 2
    names = list(map(for_matplotlib, figure.categories))
    axes.set_yticks([place + middle for place in range(len(names))], names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xscale(figure.value.scale)
    axes.set_xlabel(for_matplotlib(figure.value.title))
    if len(figure.groups) > 1:
        axes.legend(fontsize=8.5)


def _heat_map(figure: HeatMap, axes: Any, canvas: Any) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    scale = DIVERGING if figure.diverging else SEQUENTIAL
    colours = LinearSegmentedColormap.from_list("kit", scale)
    values = [[float("nan") if v is None else v for v in row] for row in figure.values]
    flat = [v for row in values for v in row if math.isfinite(v)]
    low, high = figure.range or (min(flat, default=0.0), max(flat, default=1.0))
    if figure.diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    image = axes.imshow(values, cmap=colours, aspect="auto", vmin=low, vmax=high)
    axes.grid(visible=False)
    axes.set_xlabel(for_matplotlib(figure.x.title))
    axes.set_ylabel(for_matplotlib(figure.y.title))
    for names, place in ((figure.columns, axes.set_xticks), (figure.rows, axes.set_yticks)):
        step = max(1, len(names) // 12)
        place(range(0, len(names), step), list(map(for_matplotlib, names[::step])))
    if figure.written:
        for y, row in enumerate(figure.labels):
            for x, text in enumerate(row):
                value = figure.values[y][x]
                dark = value is not None and (value - low) > 0.6 * (high - low)
                axes.text(
                    x, y, for_matplotlib(text), ha="center", va="center", fontsize=8,
                    color="white" if dark else "#1c2530",
                )  # fmt: skip
    bar = canvas.colorbar(image, ax=axes, pad=0.02)
    bar.set_label(for_matplotlib(figure.unit))
    bar.outline.set_visible(False)
