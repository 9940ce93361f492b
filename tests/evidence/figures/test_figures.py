"""Figures: the same data becomes a drawing for a page, and PNG and SVG files."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree as ET

import pytest

from linformer_kit.compare.plots import COLOURS
from linformer_kit.evidence.figures.figure import (
    MATERIALISED,
    OURS,
    VANILLA,
    Axis,
    BarChart,
    Chart,
    Group,
    HeatMap,
    Line,
    Panels,
    length_ticks,
    log_ticks,
)
from linformer_kit.evidence.figures.interactive import drawing, library
from linformer_kit.evidence.figures.pictures import pictures

CHART = Chart(
    name="chart",
    title="Time",
    caption="",
    x=Axis(title="n", scale="log", ticks=length_ticks([512, 1024])),
    y=Axis(title="s", range=(0.0, 2.0)),
    lines=(
        Line(name="ours", x=(512.0, 1024.0), y=(1.0, 2.0), colour="#0f9d8a", labels=("a", "b")),
        Line(name="point", x=(512.0,), y=(1.5,), colour="#e8743b", joined=False),
    ),
)
MAP = HeatMap(
    name="map",
    title="Heads",
    caption="",
    x=Axis(title="head"),
    y=Axis(title="layer"),
    columns=("1", "2"),
    rows=("1",),
    values=((0.5, None),),
    labels=(("50%", ""),),
    written=True,
)
BARS = BarChart(
    name="bars",
    title="Memory",
    caption="",
    value=Axis(title="MB"),
    categories=("a", "b"),
    groups=(Group(name="m", values=(1.0, None), colour="#0f9d8a"),),
)


@pytest.mark.parametrize("figure", [CHART, MAP, BARS], ids=lambda figure: figure.name)
def test_a_drawing_is_what_plotly_accepts(figure):
    import plotly.graph_objects as go

    found = drawing(figure)
    go.Figure(found)  # refuses names and values that plotly does not know
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("figure", [CHART, MAP, BARS], ids=lambda figure: figure.name)
def test_pictures_are_png_and_svg(figure):
    png, svg = pictures(figure).values()
    assert png.startswith(b"\x89PNG")
    assert figure.title in "".join(ET.fromstring(svg).itertext())


def test_panels_share_one_legend_and_have_error_bars():
    lines = (replace(CHART.lines[0], errors=(0.1, 0.2)), CHART.lines[1])
    panels = Panels(name="panels", charts=(replace(CHART, lines=lines),) * 3, columns=2)
    found = pictures(panels, ["svg"])
    assert set(found) == {"panels.svg"}
    assert found["panels.svg"].count(b">ours<") == 1
    errors = drawing(panels.charts[0])["data"][0]["error_y"]
    assert errors == {"type": "data", "array": [0.1, 0.2]}


def test_lengths_are_labelled_as_people_write_them():
    assert length_ticks([65536, 512]) == ((512.0, "512"), (65536.0, "64k"))


def test_the_library_is_there_without_a_network():
    assert "plotly.js" in library()[:200]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.01, 9.0], ["0.01", "0.1", "1"]),
        ([620.0, 748.0], ["600", "650", "700", "750", "800"]),
        ([1.0, 9.0], ["1", "2", "5"]),
        ([3.0], None),
        ([1e-6, 1e9], None),
    ],
)
def test_a_logarithmic_axis_always_has_some_numbers(values, labels):
    ticks = log_ticks(values)
    assert 3 <= len(ticks) <= 8
    if labels is not None:
        assert [label for _, label in ticks] == labels
    axis = Axis(title="y", scale="log")
    line = Line(name="a", x=tuple(values), y=tuple(values), colour="#000000")
    assert Chart(name="c", title="", caption="", x=axis, y=axis, lines=(line,)).y.ticks == ticks


def test_an_axis_without_values_has_no_ticks():
    assert log_ticks([]) == ()


def linear(colour):
    """Linear red, green and blue of #rrggbb."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def lab(colour):
    """CIE L*a*b*, in which a distance is how different two colours look."""
    red, green, blue = linear(colour)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("colours", [(*OURS, MATERIALISED), COLOURS[:5]])
def test_lines_of_one_chart_look_different(colours):
    for one, two in combinations((*colours, VANILLA), 2):
        apart = sum((a - b) ** 2 for a, b in zip(lab(one), lab(two), strict=True)) ** 0.5
        assert apart > 25, (one, two, apart)


@pytest.mark.parametrize("ground", ["#ffffff", "#1a2027"])
def test_lines_are_seen_on_both_grounds(ground):
    def light(colour):
        red, green, blue = linear(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05

    for colour in (*OURS, VANILLA, MATERIALISED):
        low, high = sorted((light(colour), light(ground)))
        assert high / low > 2.7, (colour, high / low)
