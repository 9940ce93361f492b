"""Text of figures: whatever a name holds, it is shown as it is and breaks nothing."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from linformer_kit.evidence.figures.figure import Axis, BarChart, Chart, Group, HeatMap, Line
from linformer_kit.evidence.figures.interactive import drawing
from linformer_kit.evidence.figures.pictures import pictures
from linformer_kit.evidence.figures.text import for_legend, for_matplotlib, for_plotly, printable

NAMES = [
    "<b>bold</b>",
    "</script>",
    "a & b",
    "$x$ and $y",
    r"$\frac{1",
    "_hidden",
    "\x00\x1b[31m",
    "\ud800",
    "\u202egnirts",
    "日本 🙂 שלום",
    "x" * 500,
    "%{x}",
    "",
]


def figures(name):
    axis = Axis(title=name, ticks=((1.0, name), (2.0, "b")))
    common = {"title": name, "caption": name}
    line = Line(name=name, x=(1.0, 2.0), y=(1.0, 2.0), colour="#000000", labels=(name, name))
    return [
        Chart(name="chart", x=axis, y=axis, lines=(line, line), **common),
        BarChart(
            name="bars",
            value=axis,
            categories=(name, f"{name} 2"),
            groups=tuple(
                Group(name=name, values=(1.0, 2.0), colour="#000000", labels=(name, name))
                for _ in range(2)
            ),
            **common,
        ),
        HeatMap(
            name="map",
            x=axis,
            y=axis,
            columns=(name, "b"),
            rows=(name,),
            values=((1.0, 2.0),),
            labels=((name, "b"),),
            unit=name,
            written=True,
            **common,
        ),
    ]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_name_can_be_drawn(name):
    for figure in figures(name):
        text = json.dumps(drawing(figure), ensure_ascii=False)
        assert "<b>" not in text
        assert "</script>" not in text
        text.encode()
        png, svg = pictures(figure).values()
        assert png.startswith(b"\x89PNG")
        ET.fromstring(svg)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_leave_a_gap(value):
    line = Line(name="a", x=(1.0, 2.0, 3.0), y=(1.0, value, 2.0), colour="#000000")
    chart = Chart(name="c", title="", caption="", x=Axis(title=""), y=Axis(title=""), lines=(line,))
    assert list(drawing(chart)["data"][0]["y"]) == [1.0, None, 2.0]
    pictures(chart)
    heat = HeatMap(
        name="m", title="", caption="", x=Axis(title=""), y=Axis(title=""), columns=("1", "2"),
        rows=("1",), values=((value, 1.0),),
    )  # fmt: skip
    json.dumps(drawing(heat), allow_nan=False)
    pictures(heat)


def test_what_cannot_be_shown_is_replaced_and_the_rest_stays():
    assert printable("a\x00b\ud800c\u202ed\n\te") == "a\ufffdb\ufffdc\ufffdd\n\te"
    assert for_plotly("<a> & b") == "&lt;a&gt; &amp; b"
    assert for_legend("_a").endswith("_a")
    assert not for_legend("_a").startswith("_")
    long = for_matplotlib("begin" + "x" * 500 + "end")
    assert len(long) == 80
    assert long.startswith("begin")
    assert long.endswith("end")
