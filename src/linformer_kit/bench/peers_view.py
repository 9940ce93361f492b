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
from . import quantities
from .cells import latest
from .peer_models import OURS, PEERS
from .peers import BENCH, MODES
from .provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Record

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
        if timed:
            found.append(_chart(timed, mode))
    if _cells(chosen, "memory"):
        found.append(_bars(chosen))
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
                        f"{_why(result['peer'], length)}"
                    )
    ours = _work(chosen)
    for (length, peer), work in ours.items():
        mine = ours.get((length, OURS))
        if peer != OURS and mine and work < LEVEL * mine:
            behind.append(
                f"{peer} took {work / mine:.2f} of our memory in training at n {length:,}: "
                f"{_why(peer, length)}"
            )
    return behind


def _why(peer: str, length: int) -> str:
    if peer == "FNet":
        return "it has no attention, no queries, keys or values: four products of a layer less"
    if peer in ("BERT (SDPA)", "ModernBERT", "BigBird") and length <= 1024:
        return "at this length exact attention is little work, and E X is work of its own"
    return "measured so; no single cause is known"


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
    what = "Forward pass" if mode == "inference" else "Training step"
    return Chart(
        name=f"peers-{mode}",
        title=f"{what}: encoders for long inputs",
        caption=f"Dashed: quadratic in the length. {_caption(timed)}.",
        x=Axis(title="tokens n", scale="log", ticks=length_ticks(lengths)),
        y=Axis(title="seconds", scale="log"),
        lines=tuple(lines),
    )


def _bars(records: list[Record]) -> BarChart:
    work = _work(records)
    longest = max(length for length, _ in work)
    names = [name for name in PEERS if (longest, name) in work]
    return BarChart(
        name="peers-memory",
        title=f"Peak memory of a training step at n = {longest:,}",
        caption=f"Beyond weights and input. {_caption(_cells(records, 'memory'))}.",
        value=Axis(title="megabytes"),
        categories=tuple(names),
        groups=(
            Group(
                name="memory",
                values=tuple(work[longest, name] / 1e6 for name in names),
                colour=OUR_COLOURS[0],
                labels=tuple(f"{name}: {quantities.size(work[longest, name])}" for name in names),
            ),
        ),
    )


def _caption(records: Sequence[Record]) -> str:
    cell = records[0]["cell"]
    return (
        f"{cell['depth']} layers, dim {cell['dim']}, {cell['num_heads']} heads, k {cell['k']}, "
        f"batch {cell['batch']}; {provenance(records)}"
    )
