"""The tables and figures of `linformer bench grid`, made of its records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..figures.figure import MATERIALISED, OURS, VANILLA, Axis, Chart, HeatMap, Line, length_ticks
from ..figures.sheet import Entry, Sheet, entries
from ..measure import quantities
from ..measure.cells import latest
from ..measure.provenance import provenance
from .grid import BENCH
from .paper import TABLE_3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..measure.records import Record
    from .grid import Form

Key = tuple[int, str, int | None]  # length, form, k

NAMES = {"sdpa": "vanilla, SDPA", "materialised": "vanilla, materialised"}


@dataclass(frozen=True)
class Grid:
    """What the records say, by length, form and k."""

    seconds: dict[Key, float]
    memory: dict[Key, int]
    skipped: dict[Key, str]
    batches: dict[int, int]  # sequences in a batch, by length
    lengths: list[int]
    ks: list[int]
    caption: str

    def saved(self, what: str, length: int, k: int, against: Form) -> float | None:
        """How many times less Linformer takes."""
        values: dict[Key, float] | dict[Key, int]
        values = self.seconds if what == "time" else self.memory
        theirs = values.get((length, against, None))
        ours = values.get((length, "linformer", k))
        return theirs / ours if theirs and ours else None


def read_grid(records: Sequence[Record]) -> Grid | None:
    """Of the last width that was measured."""
    chosen = latest(records, BENCH)
    if not chosen:
        return None
    cell = chosen[-1]["cell"]
    sizes = ("dim", "num_heads")
    chosen = [r for r in chosen if all(r["cell"][name] == cell[name] for name in sizes)]
    seconds: dict[Key, float] = {}
    memory: dict[Key, int] = {}
    skipped: dict[Key, str] = {}
    for record in chosen:
        length = record["cell"]["length"]
        for result in record["results"]:
            key = (length, result["form"], result["k"])
            if result.get("best") is not None:
                seconds[key] = result["best"]
            elif result.get("work") is not None:
                memory[key] = result["work"]
            elif result.get("note"):
                skipped[key] = result["note"]
    present = [*seconds, *memory]
    caption = (
        f"one encoder layer, dim {cell['dim']}, {cell['num_heads']} heads, feed-forward "
        f"{4 * cell['dim']}, inference, batches of at least {_tokens(chosen):,} tokens; "
        f"{provenance(chosen)}"
    )
    return Grid(
        seconds=seconds,
        memory=memory,
        skipped=skipped,
        batches={record["cell"]["length"]: record["cell"]["batch"] for record in chosen},
        lengths=sorted({length for length, _, _ in present}),
        ks=sorted({k for _, _, k in present if k is not None}),
        caption=caption,
    )


def sheets(grid: Grid) -> list[Sheet]:
    """Laid out as the paper's Table 3: n down, k across."""
    found = [
        _sheet(grid, "time", "materialised", "Time saved against the materialised Transformer"),
        _sheet(grid, "time", "sdpa", "Time saved against SDPA, the Transformer of today"),
    ]
    if grid.memory:
        found += [
            _sheet(grid, "memory", "materialised", "Memory saved against the materialised one"),
            _sheet(grid, "memory", "sdpa", "Memory saved against SDPA"),
        ]
    return found


def figures(grid: Grid) -> list[Chart | HeatMap]:
    x = Axis(title="tokens n", scale="log", ticks=length_ticks(grid.lengths))
    found: list[Chart | HeatMap] = [
        Chart(
            name="grid-time",
            title="Time to read n tokens",
            caption=f"Both axes are logarithmic: a line twice as steep grows with the square. "
            f"Time for each sequence; {grid.caption}.",
            x=x,
            y=Axis(title="seconds a sequence", scale="log"),
            lines=_lines(
                grid,
                {key: value / grid.batches[key[0]] for key, value in grid.seconds.items()},
                quantities.seconds,
            ),
        )
    ]
    if grid.memory:
        found.append(
            Chart(
                name="grid-memory",
                title="Memory to read n tokens",
                caption="Peak beyond weights and input, for a batch, each measured in a process of "
                f"its own; {grid.caption}.",
                x=x,
                y=Axis(title="megabytes", scale="log"),
                lines=_lines(
                    grid,
                    {key: value / 1e6 for key, value in grid.memory.items()},
                    lambda value: quantities.size(round((value or 0) * 1e6)),
                ),
            )
        )
    found.append(_heat_map(grid))
    return found


class Saving(NamedTuple):
    """What is saved at the longest lengths that were measured: times less."""

    length: int
    k: int
    time: float  # against SDPA
    memory: float | None  # against SDPA
    old_length: int | None
    old: float | None  # time, against the materialised form


def best_saving(grid: Grid) -> Saving | None:
    """With k = 256 if it was measured: the paper's choice for long inputs."""
    for length in reversed(grid.lengths):
        ks = [k for k in grid.ks if grid.saved("time", length, k, "sdpa")]
        if not ks:
            continue
        k = 256 if 256 in ks else ks[0]
        time = grid.saved("time", length, k, "sdpa")
        assert time is not None
        old = {n: grid.saved("time", n, k, "materialised") for n in grid.lengths}
        longest = max((n for n, saved in old.items() if saved), default=None)
        return Saving(
            length=length,
            k=k,
            time=time,
            memory=grid.saved("memory", length, k, "sdpa"),
            old_length=longest,
            old=None if longest is None else old[longest],
        )
    return None


def in_words(grid: Grid) -> str | None:
    """The answer at the longest length where both were measured."""
    best = best_saving(grid)
    if best is None:
        return None
    words = (
        f"On this machine, a Linformer layer with k = {best.k} reads {best.length:,} tokens "
        f"{best.time:.1f} times faster than today's fused attention"
    )
    if best.memory is not None:
        words += (
            f" in {1 / best.memory:.0%} of its memory"
            if best.memory >= 1
            else f", in {1 / best.memory:.2f} times its memory"
        )
    if best.old is not None:
        words += (
            f"; against the attention of the paper's day it is {best.old:.1f} times faster at "
            f"{best.old_length:,} tokens"
        )
    return f"{words}."


def _sheet(grid: Grid, what: str, against: Form, title: str) -> Sheet:
    rows = []
    for length in grid.lengths:
        row = [Entry(f"{length:,}")]
        for k in grid.ks:
            row.append(_entry(grid, what, against, length, k))
        rows.append(tuple(row))
    notes = [
        f"n {n:,}, {NAMES.get(form, f'Linformer k {k}')}: {note}"
        for (n, form, k), note in sorted(grid.skipped.items(), key=str)
        if form in (against, "linformer")
    ]
    beside = " (the paper's figure in brackets)" if against == "materialised" else ""
    return Sheet(
        title=f"{title}{beside}",
        columns=("n", *(f"k = {k:,}" for k in grid.ks)),
        rows=tuple(rows),
        caption=grid.caption,
        notes=tuple(dict.fromkeys(notes)),
    )


def _entry(grid: Grid, what: str, against: Form, length: int, k: int) -> Entry:
    paper = TABLE_3.get((length, k))
    known = None if paper is None else (paper.time if what == "time" else paper.memory)
    saved = grid.saved(what, length, k, against)
    if saved is None:
        if k >= length:
            return Entry("")
        skipped = (length, against, None) in grid.skipped
        shown = "does not fit" if skipped and against == "materialised" else "-"
        return Entry(shown if known is None else f"{shown} ({known:g})", "quiet")
    text = f"{saved:.1f}" if saved >= 1.05 else f"{saved:.2f}"
    if against == "materialised":
        if known is None:
            return Entry(text)
        return Entry(f"{text} ({known:g})", "good" if round(saved, 1) >= known else "bad")
    return Entry(text, "good" if saved >= 1.05 else "bad" if saved < 0.95 else "plain")


def _lines(grid, values, show) -> tuple[Line, ...]:  # type: ignore[no-untyped-def]
    who = [
        ("materialised", None, MATERIALISED),
        ("sdpa", None, VANILLA),
        *(("linformer", k, OURS[i % len(OURS)]) for i, k in enumerate(grid.ks)),
    ]
    lines = []
    for form, k, colour in who:
        points = [(n, values[n, form, k]) for n in grid.lengths if (n, form, k) in values]
        if points:
            name = NAMES.get(form, f"Linformer, k = {k}")
            lines.append(
                Line(
                    name=name,
                    x=tuple(float(n) for n, _ in points),
                    y=tuple(value for _, value in points),
                    colour=colour,
                    dash="solid" if k else "dash",
                    labels=tuple(f"{name}: {show(value)} at n = {n:,}" for n, value in points),
                )
            )
    return tuple(lines)


def _heat_map(grid: Grid) -> HeatMap:
    saved = [[grid.saved("time", n, k, "sdpa") for k in grid.ks] for n in grid.lengths]
    return HeatMap(
        name="grid-saved",
        title="How many times faster than SDPA",
        caption=f"Where to expect a gain, and where not; {grid.caption}.",
        x=Axis(title="k"),
        y=Axis(title="tokens n"),
        columns=tuple(f"{k:,}" for k in grid.ks),
        rows=tuple(f"{n:,}" for n in grid.lengths),
        values=tuple(map(tuple, saved)),
        labels=tuple(
            tuple("" if value is None else f"{value:.1f}x" for value in row) for row in saved
        ),
        unit="times faster",
        written=True,
    )


def _tokens(records: Sequence[Record]) -> int:
    return min(record["cell"]["length"] * record["cell"]["batch"] for record in records)


def headline(grid: Grid, k: int | None = None) -> Sheet:
    """One row a length: times, and what is saved."""
    k = k if k is not None else (256 if 256 in grid.ks else grid.ks[0])
    columns = ["tokens", "materialised", "SDPA", "Linformer", "times faster"]
    if grid.memory:
        columns.append("times less memory")
    rows = []
    for n in grid.lengths:
        mine = grid.seconds.get((n, "linformer", k))
        if mine is None:
            continue
        row = [
            f"{n:,}",
            quantities.seconds(grid.seconds.get((n, "materialised", None))),
            quantities.seconds(grid.seconds.get((n, "sdpa", None))),
            quantities.seconds(mine),
            quantities.ratio(grid.saved("time", n, k, "sdpa")),
        ]
        if grid.memory:
            row.append(quantities.ratio(grid.saved("memory", n, k, "sdpa")))
        rows.append(entries(*row))
    return Sheet(
        title=f"Time to read a batch, k = {k}",
        columns=tuple(columns),
        rows=tuple(rows),
        caption=grid.caption,
    )
