"""The tables and figures of `linformer bench budget`, made of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..figures.figure import OURS, VANILLA, Axis, Chart, Line, length_ticks
from ..figures.sheet import Entry, Sheet, entries
from . import quantities
from .budget import BENCH
from .cells import latest
from .provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Record

# The WMT14 project's encoder at 16,384 tokens: what its vanilla grew by from n 256 to 16,384.
EARLIER_VANILLA_GROWTH = 9.6


def sheets(records: Sequence[Record]) -> list[Sheet]:
    return [_sheet(shape, chosen) for shape, chosen in _by_shape(records).items()]


def figures(records: Sequence[Record]) -> list[Chart]:
    return [_chart(shape, chosen) for shape, chosen in _by_shape(records).items()]


def growth(records: Sequence[Record], contestant: str) -> float | None:
    """The slowest over the fastest length, of best times, for records of one shape."""
    times = [
        result["best"]
        for record in records
        for result in record["results"]
        if result["contestant"] == contestant and result["best"] is not None
    ]
    return max(times) / min(times) if times else None


def _by_shape(records: Sequence[Record]) -> dict[str, list[Record]]:
    shapes: dict[str, list[Record]] = {}
    for record in latest(records, BENCH):
        shapes.setdefault(record["cell"]["shape"], []).append(record)
    return {
        shape: sorted(chosen, key=lambda record: record["cell"]["length"])
        for shape, chosen in shapes.items()
    }


def _contestants(records: Sequence[Record]) -> list[str]:
    names = dict.fromkeys(r["contestant"] for record in records for r in record["results"])
    return [name for name in names if name != "gemm"]


def _sheet(shape: str, records: list[Record]) -> Sheet:
    names = _contestants(records)
    rows = []
    for record in records:
        best = {result["contestant"]: result["best"] for result in record["results"]}
        rows.append(
            entries(
                f"{record['cell']['length']:,}",
                *(quantities.seconds(best.get(name)) for name in names),
                quantities.seconds(best.get("gemm")),
            )
        )
    spread = []
    for name in (*names, "gemm"):
        times = growth(records, name)
        tone = (
            "plain" if name in ("vanilla", "gemm") else "good" if times and times <= 1.15 else "bad"
        )
        spread.append(Entry("-" if times is None else f"{times:.2f}x", tone))  # type: ignore[arg-type]
    rows.append((Entry("slowest / fastest"), *spread))
    return Sheet(
        title=f"{_title(shape)}: time of {records[0]['cell']['tokens']:,} tokens",
        columns=("n", *(_name(name) for name in names), "one GEMM"),
        rows=tuple(rows),
        caption=_caption(records),
        notes=(
            "In the WMT14 project that this follows, vanilla grew "
            f"{EARLIER_VANILLA_GROWTH} times from n 256 to 16,384, on a GPU. The GEMM column is a "
            "fixed product in the same rounds: where it moves, the machine did.",
        ),
    )


def _chart(shape: str, records: list[Record]) -> Chart:
    names = _contestants(records)
    lines = []
    for number, name in enumerate(names):
        points = [
            (record["cell"]["length"], result["best"])
            for record in records
            for result in record["results"]
            if result["contestant"] == name and result["best"] is not None
        ]
        lines.append(
            Line(
                name=_name(name),
                x=tuple(float(n) for n, _ in points),
                y=tuple(seconds for _, seconds in points),
                colour=VANILLA if name == "vanilla" else OURS[(number - 1) % len(OURS)],
                dash="dash" if name == "vanilla" else "solid",
                labels=tuple(
                    f"{_name(name)}: {quantities.seconds(seconds)} at n = {n:,}"
                    for n, seconds in points
                ),
            )
        )
    lengths = [record["cell"]["length"] for record in records]
    return Chart(
        name=f"budget-{shape}",
        title=f"{_title(shape)}: the same tokens in longer pieces",
        caption=f"A flat line means that length costs nothing. {_caption(records)}.",
        x=Axis(title="tokens n in a piece", scale="log", ticks=length_ticks(lengths)),
        y=Axis(title=f"seconds for {records[0]['cell']['tokens']:,} tokens", scale="log"),
        lines=tuple(lines),
    )


def _name(contestant: str) -> str:
    return "vanilla" if contestant == "vanilla" else f"Linformer {contestant.replace(' ', ' = ')}"


def _title(shape: str) -> str:
    return "Encoder" if shape == "encoder" else "Encoder and decoder"


def _caption(records: Sequence[Record]) -> str:
    cell = records[0]["cell"]
    layers = "1 layer" if cell["depth"] == 1 else f"{cell['depth']} layers"
    return (
        f"{layers}, dim {cell['dim']}, {cell['num_heads']} heads, inference, vanilla on SDPA; "
        f"{provenance(records)}"
    )
