"""The tables and figures of `linformer bench budget`, made of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..figures.figure import OURS, VANILLA, Axis, Chart, Line, length_ticks
from ..figures.sheet import Entry, Sheet, entries
from ..measure import quantities
from ..measure.cells import latest
from ..measure.provenance import provenance
from .budget import BENCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..measure.records import Record

# The WMT14 project's encoder at 16,384 tokens: what its vanilla grew by from n 256 to 16,384.
EARLIER_VANILLA_GROWTH = 9.6
FLAT = 1.15


def sheets(records: Sequence[Record]) -> list[Sheet]:
    return [_sheet(shape, chosen) for shape, chosen in _by_shape(records).items()]


def figures(records: Sequence[Record]) -> list[Chart]:
    return [_chart(shape, chosen) for shape, chosen in _by_shape(records).items()]


def growth(record: Record) -> float | None:
    """The slowest length over the fastest, by best times."""
    times = [seconds for length, seconds in times_of(record).items() if length is not None]
    return max(times) / min(times) if times else None


def times_of(record: Record) -> dict[int | None, float]:
    """Best times by length; None is the yardstick."""
    return {r["length"]: r["best"] for r in record["results"] if r["best"] is not None}


def _by_shape(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The last record of each model: vanilla first, then by k."""
    shapes: dict[str, dict[int, Record]] = {}
    for record in latest(records, BENCH):
        shapes.setdefault(record["cell"]["shape"], {})[record["cell"]["k"] or 0] = record
    return {shape: [chosen[k] for k in sorted(chosen)] for shape, chosen in shapes.items()}


def _sheet(shape: str, records: list[Record]) -> Sheet:
    times = [times_of(record) for record in records]
    lengths = sorted({n for found in times for n in found if n is not None})
    rows = [
        entries(f"{length:,}", *(quantities.seconds(found.get(length)) for found in times))
        for length in lengths
    ]
    spread, grown = [], []
    for record, found in zip(records, times, strict=True):
        vanilla = record["cell"]["k"] is None
        spread.append(_times(growth(record), vanilla))
        first, last = found.get(lengths[0]), found.get(lengths[-1])
        grown.append(_times(last / first if first and last else None, vanilla))
    yardstick = [quantities.seconds(found.get(None)) for found in times]
    return Sheet(
        title=f"{_title(shape)}: time of {records[0]['cell']['tokens']:,} tokens",
        columns=("n", *(_name(record) for record in records)),
        rows=(
            *rows,
            (Entry("longest / shortest"), *grown),
            (Entry("slowest / fastest"), *spread),
            entries("one GEMM beside it", *yardstick),
        ),
        caption=_caption(records),
        notes=(
            "In the WMT14 project that this follows, vanilla grew "
            f"{EARLIER_VANILLA_GROWTH} times from n 256 to 16,384, on a GPU.",
        ),
    )


def _times(times: float | None, vanilla: bool) -> Entry:
    if times is None:
        return Entry("-", "quiet")
    return Entry(f"{times:.2f}x", "plain" if vanilla else "good" if times <= FLAT else "bad")


def _chart(shape: str, records: list[Record]) -> Chart:
    lines = []
    for number, record in enumerate(records):
        vanilla = record["cell"]["k"] is None
        points = sorted((n, time) for n, time in times_of(record).items() if n is not None)
        lines.append(
            Line(
                name=_name(record),
                x=tuple(float(n) for n, _ in points),
                y=tuple(seconds for _, seconds in points),
                colour=VANILLA if vanilla else OURS[(number - 1) % len(OURS)],
                dash="dash" if vanilla else "solid",
                labels=tuple(
                    f"{_name(record)}: {quantities.seconds(seconds)} at n = {n:,}"
                    for n, seconds in points
                ),
            )
        )
    return Chart(
        name=f"budget-{shape}",
        title=f"{_title(shape)}: the same tokens in longer pieces",
        caption=f"A flat line means that length costs nothing. {_caption(records)}.",
        x=Axis(
            title="tokens n in a piece",
            scale="log",
            ticks=length_ticks(records[0]["cell"]["lengths"]),
        ),
        y=Axis(title=f"seconds for {records[0]['cell']['tokens']:,} tokens", scale="log"),
        lines=tuple(lines),
    )


def _name(record: Record) -> str:
    k = record["cell"]["k"]
    return "vanilla" if k is None else f"k = {k}"


def _title(shape: str) -> str:
    return "Encoder" if shape == "encoder" else "Encoder and decoder"


def _caption(records: Sequence[Record]) -> str:
    cell = records[0]["cell"]
    layers = "1 layer" if cell["depth"] == 1 else f"{cell['depth']} layers"
    return (
        f"{layers}, dim {cell['dim']}, {cell['num_heads']} heads, inference, vanilla on SDPA; "
        f"{provenance(records)}"
    )
