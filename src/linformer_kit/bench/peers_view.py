"""The tables and figures of `linformer bench peers`, made of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..figures.figure import (
    MATERIALISED,
    OTHERS,
    VANILLA,
    Axis,
    BarChart,
    Chart,
    Group,
    Line,
    length_ticks,
)
from ..figures.figure import OURS as OUR_COLOURS
from ..figures.sheet import Entry, Sheet
from ..measure import quantities
from ..measure.cells import latest
from ..measure.provenance import provenance
from .peer_models import OURS, PEERS
from .peers import BENCH, MODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..measure.records import Record

SMALL = 2**18  # values of an input: below, a pass takes few milliseconds
LEVEL = 0.97  # a ratio that is nearer to 1 than this is no difference on a machine in use


def sheets(records: Sequence[Record]) -> list[Sheet]:
    chosen = latest(records, BENCH)
    found = [_times(chosen, mode) for mode in MODES if _cells(chosen, "time", mode)]
    if _cells(chosen, "memory"):
        found.append(_memory(chosen))
    if _cells(chosen, "equality"):
        found.append(_equality(chosen))
    return found


def figures(records: Sequence[Record]) -> list[Chart | BarChart]:
    chosen = latest(records, BENCH)
    found: list[Chart | BarChart] = []
    for mode in MODES:
        timed = _cells(chosen, "time", mode)
        if len(timed) == 1:
            found.append(_time_bars(timed[0], mode))
        elif timed:
            found.append(_chart(timed, mode))
    if _work(chosen):
        found.append(_memory_bars(chosen))
    return found


def rows_behind(records: Sequence[Record]) -> list[str]:
    """Each comparison in which a peer was ahead of ours, in words, with the reason if known."""
    chosen = latest(records, BENCH)
    behind = []
    for mode in MODES:
        for record in _cells(chosen, "time", mode):
            for result in record["results"]:
                times = result["ours_times_faster"]
                if result["peer"] != OURS and times is not None and times < LEVEL:
                    length = record["cell"]["length"]
                    behind.append(
                        f"{result['peer']} took {times:.2f} of our time in {mode} at n {length:,}: "
                        f"{_why(result['peer'], record['cell'])}"
                    )
    work = _work(chosen)
    for record in _cells(chosen, "memory"):
        length, peer = record["cell"]["length"], record["cell"]["peer"]
        mine, theirs = work.get((length, OURS)), work.get((length, peer))
        if peer != OURS and mine and theirs and theirs < LEVEL * mine:
            behind.append(
                f"{peer} took {theirs / mine:.2f} of our memory in training at n {length:,}: "
                f"{_why(peer, record['cell'])}"
            )
    return behind


def _why(peer: str, cell: Record) -> str:
    """What is known to put a peer ahead: its size, or what it does not do."""
    if cell["dim"] * cell["length"] * cell["batch"] < SMALL:
        return "so small an input is mostly the calling of operations, of which ours has more"
    if peer in PEERS and PEERS[peer].ahead and cell["length"] <= PEERS[peer].ahead_until:
        return PEERS[peer].ahead
    return "measured so; no cause is known"


def _cells(records: Sequence[Record], what: str, mode: str | None = None) -> list[Record]:
    return sorted(
        (
            record
            for record in records
            if record["cell"]["what"] == what and (mode is None or record["cell"]["mode"] == mode)
        ),
        key=lambda record: record["cell"].get("length", 0),
    )


def _times(records: list[Record], mode: str) -> Sheet:
    timed = _cells(records, "time", mode)
    rows = []
    names = dict.fromkeys(result["peer"] for record in timed for result in record["results"])
    for name in names:
        row = [Entry(name)]
        for record in timed:
            result = next((r for r in record["results"] if r["peer"] == name), None)
            row.append(_time_entry(name, result))
        rows.append((*row, Entry(PEERS[name].remark if name in PEERS else "", "quiet")))
    lengths = [record["cell"]["length"] for record in timed]
    title = "Forward pass" if mode == "inference" else "Training step, forward and backward"
    return Sheet(
        title=f"{title}: our time, and how many times faster that is",
        columns=("encoder", *(f"n = {length:,}" for length in lengths), "what it does"),
        rows=tuple(rows),
        caption=_caption(timed),
        words=1,
        notes=tuple(rows_behind([r for r in records if r in timed])),
    )


def _time_entry(name: str, result: Record | None) -> Entry:
    if result is None:
        return Entry("-", "quiet")
    if result["best"] is None:
        return Entry(result["note"] or "-", "quiet")
    if name == OURS:
        return Entry(quantities.seconds(result["best"]))
    times = result["ours_times_faster"]
    tone = "good" if times > 1 / LEVEL else "bad" if times < LEVEL else "plain"
    return Entry(quantities.ratio(times), tone)  # type: ignore[arg-type]


def _work(records: Sequence[Record]) -> dict[tuple[int, str], int]:
    return {
        (record["cell"]["length"], result["peer"]): result["work"]
        for record in _cells(records, "memory")
        for result in record["results"]
        if result["work"] is not None
    }


def _memory(records: list[Record]) -> Sheet:
    measured = _cells(records, "memory")
    work = _work(records)
    lengths = sorted({record["cell"]["length"] for record in measured})
    names = dict.fromkeys(record["cell"]["peer"] for record in measured)
    rows = []
    for name in names:
        row = [Entry(name)]
        for length in lengths:
            theirs, mine = work.get((length, name)), work.get((length, OURS))
            if theirs is None or not mine:
                row.append(Entry("-", "quiet"))
            elif name == OURS:
                row.append(Entry(quantities.size(mine)))
            else:
                times = theirs / mine
                tone = "good" if times > 1 / LEVEL else "bad" if times < LEVEL else "plain"
                row.append(Entry(quantities.ratio(times), tone))  # type: ignore[arg-type]
        rows.append(tuple(row))
    return Sheet(
        title="Peak memory of a training step: ours, and how many times more theirs is",
        columns=("encoder", *(f"n = {length:,}" for length in lengths)),
        rows=tuple(rows),
        caption=f"beyond weights and input; {_caption(measured)}",
        notes=tuple(rows_behind([r for r in records if r in measured])),
    )


def _equality(records: list[Record]) -> Sheet:
    compared = _cells(records, "equality")
    return Sheet(
        title="The same outputs, with the peer's weights copied into ours",
        columns=("encoder", "largest difference"),
        rows=tuple(
            (
                Entry(result["peer"]),
                Entry(
                    f"{result['difference']:.1e}", "good" if result["difference"] < 1e-4 else "bad"
                ),
            )
            for record in compared
            for result in record["results"]
        ),
        caption="outputs of size 1, float32; linformer-pytorch with the bias of its E set to zero; "
        f"{provenance(compared)}",
    )


def _colour(name: str, names: list[str]) -> str:
    fixed = {OURS: OUR_COLOURS[0], "BERT (SDPA)": VANILLA, "linformer": MATERIALISED}
    rest = [other for other in names if other not in fixed]
    return fixed.get(name) or OTHERS[rest.index(name) % len(OTHERS)]


def _chart(timed: list[Record], mode: str) -> Chart:
    names = list(dict.fromkeys(r["peer"] for record in timed for r in record["results"]))
    lines = []
    for name in names:
        points = [
            (record["cell"]["length"], result["best"])
            for record in timed
            for result in record["results"]
            if result["peer"] == name and result["best"] is not None
        ]
        if points:
            lines.append(
                Line(
                    name=name,
                    x=tuple(float(n) for n, _ in points),
                    y=tuple(seconds for _, seconds in points),
                    colour=_colour(name, names),
                    dash="dash" if name in PEERS and PEERS[name].kind == "quadratic" else "solid",
                    labels=tuple(
                        f"{name}: {quantities.seconds(seconds)} at n = {n:,}"
                        for n, seconds in points
                    ),
                )
            )
    lengths = [record["cell"]["length"] for record in timed]
    return Chart(
        name=f"peers-{mode}",
        title=f"{_what(mode)}: encoders for long inputs",
        caption=f"Dashed: quadratic in the length. {_caption(timed)}.",
        x=Axis(title="tokens n", scale="log", ticks=length_ticks(lengths)),
        y=Axis(title="seconds", scale="log"),
        lines=tuple(lines),
    )


def _time_bars(record: Record, mode: str) -> BarChart:
    """Of one length there are no lines to draw."""
    taken = {r["peer"]: r["best"] for r in record["results"] if r["best"] is not None}
    return _bars(
        name=f"peers-{mode}",
        title=f"{_what(mode)} at n = {record['cell']['length']:,}",
        caption=f"{_caption([record])}.",
        unit="milliseconds",
        values={name: seconds * 1000 for name, seconds in taken.items()},
        told={name: quantities.seconds(seconds) for name, seconds in taken.items()},
    )


def _memory_bars(records: list[Record]) -> BarChart:
    work = _work(records)
    longest = max(length for length, _ in work)
    at = {name: work[longest, name] for name in PEERS if (longest, name) in work}
    return _bars(
        name="peers-memory",
        title=f"Peak memory of a training step at n = {longest:,}",
        caption=f"Beyond weights and input. {_caption(_cells(records, 'memory'))}.",
        unit="megabytes",
        values={name: size / 1e6 for name, size in at.items()},
        told={name: quantities.size(size) for name, size in at.items()},
    )


def _bars(
    *,
    name: str,
    title: str,
    caption: str,
    unit: str,
    values: dict[str, float],
    told: dict[str, str],
) -> BarChart:
    return BarChart(
        name=name,
        title=title,
        caption=caption,
        value=Axis(title=unit),
        categories=tuple(values),
        groups=(
            Group(
                name=unit,
                values=tuple(values.values()),
                colour=OUR_COLOURS[0],
                labels=tuple(f"{peer}: {text}" for peer, text in told.items()),
            ),
        ),
    )


def _what(mode: str) -> str:
    return "Forward pass" if mode == "inference" else "Training step"


def _caption(records: Sequence[Record]) -> str:
    cell = records[0]["cell"]
    layers = "1 layer" if cell["depth"] == 1 else f"{cell['depth']} layers"
    return (
        f"{layers}, dim {cell['dim']}, {cell['num_heads']} heads, k {cell['k']}, "
        f"batch {cell['batch']}; {provenance(records)}"
    )
