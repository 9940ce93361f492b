"""The table and figure of `linformer bench roofline`, made of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..figures.figure import OTHERS, OURS, VANILLA, Axis, Chart, Line
from ..figures.sheet import Entry, Sheet
from ..measure import quantities
from ..measure.cells import latest
from ..measure.provenance import provenance
from .roofline import BENCH, COPY, GEMM, LAYER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..measure.records import Record


class Reached(NamedTuple):
    """One operation: what it did, and what the machine would allow."""

    name: str
    seconds: float  # of all times the layer does it
    rate: float  # FLOPs a second
    intensity: float  # FLOPs a byte
    of_gemm: float
    of_roof: float


def reached(record: Record) -> tuple[list[Reached], float, float]:
    """The operations, the GEMM rate and the bandwidth."""
    results = {result["operation"]: result for result in record["results"]}
    gemm = results[GEMM]["flops"] / results[GEMM]["best"]
    bandwidth = results[COPY]["bytes"] / results[COPY]["best"]
    found = []
    for name, result in results.items():
        if name in (GEMM, COPY, LAYER) or not result["best"]:
            continue
        rate = result["flops"] / result["best"]
        intensity = result["flops"] / result["bytes"]
        roof = min(gemm, bandwidth * intensity)
        seconds = result["best"] * result["times"]
        found.append(Reached(name, seconds, rate, intensity, rate / gemm, rate / roof))
    return found, gemm, bandwidth


def sheets(records: Sequence[Record]) -> list[Sheet]:
    return [_sheet(record) for record in latest(records, BENCH)]


def figures(records: Sequence[Record]) -> list[Chart]:
    return [_chart(record) for record in latest(records, BENCH)]


def _sheet(record: Record) -> Sheet:
    found, gemm, bandwidth = reached(record)
    layer = next(r for r in record["results"] if r["operation"] == LAYER)
    rows = []
    for one in found:
        rows.append(
            (
                Entry(one.name),
                Entry(quantities.seconds(one.seconds)),
                Entry(f"{one.rate / 1e9:.1f}"),
                Entry(f"{one.intensity:.1f}"),
                Entry(f"{one.of_gemm:.0%}", "good" if one.of_gemm >= 0.7 else "plain"),
                Entry(f"{one.of_roof:.0%}"),
            )
        )
    rate = layer["flops"] / layer["best"]
    rows.append(
        (
            Entry(LAYER),
            Entry(quantities.seconds(layer["best"])),
            Entry(f"{rate / 1e9:.1f}"),
            Entry(""),
            Entry(f"{rate / gemm:.0%}", "good" if rate / gemm >= 0.7 else "plain"),
            Entry(""),
        )
    )
    cell = record["cell"]
    return Sheet(
        title=f"Operations of a layer at n = {cell['length']:,}, k = {cell['k']}",
        columns=("operation", "time", "GFLOP/s", "FLOP/byte", "of GEMM rate", "of its roof"),
        rows=tuple(rows),
        caption=f"GEMM {gemm / 1e9:.0f} GFLOP/s, copy {bandwidth / 1e9:.1f} GB/s; "
        f"{_caption(record)}",
        notes=(
            "norm and gelu are counted with 8 FLOPs a value; what lies in a cache may pass the "
            "roof of the memory's bandwidth.",
        ),
    )


def _chart(record: Record) -> Chart:
    found, gemm, bandwidth = reached(record)
    ridge = gemm / bandwidth
    low = min(0.5, *(one.intensity for one in found)) / 1.5
    high = max(2 * ridge, *(one.intensity for one in found)) * 2
    cell = record["cell"]
    return Chart(
        name=f"roofline-{cell['length']}-{cell['k']}",
        title=f"Roofline of a layer at n = {cell['length']:,}, k = {cell['k']}",
        caption=f"The roof: bandwidth on the left, the GEMM rate on the right. {_caption(record)}.",
        x=Axis(title="FLOPs a byte", scale="log"),
        y=Axis(title="GFLOP/s", scale="log"),
        lines=(
            Line(
                name="roof",
                x=(low, ridge, high),
                y=(low * bandwidth / 1e9, gemm / 1e9, gemm / 1e9),
                colour=VANILLA,
                dash="dash",
                marked=False,
            ),
            *(
                Line(
                    name=one.name,
                    x=(one.intensity,),
                    y=(one.rate / 1e9,),
                    colour=(*OURS, *OTHERS)[number],
                    joined=False,
                    labels=(
                        f"{one.name}: {one.rate / 1e9:.1f} GFLOP/s, {one.of_gemm:.0%} of GEMM, "
                        f"{quantities.seconds(one.seconds)} in all",
                    ),
                )
                for number, one in enumerate(found)
            ),
        ),
    )


def _caption(record: Record) -> str:
    cell = record["cell"]
    return (
        f"dim {cell['dim']}, {cell['num_heads']} heads, batch {cell['batch']}, float32; "
        f"{provenance([record])}"
    )
