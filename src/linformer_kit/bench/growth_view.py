"""The figures of `linformer bench growth` for a report; its terminal table is `growth_table.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..figures.figure import OURS as OUR_COLOURS
from ..figures.figure import VANILLA, Axis, Chart, Line, length_ticks
from ..figures.sheet import Entry, Sheet
from ..measure import quantities
from ..measure.provenance import provenance
from .contestants import FULL, OURS
from .growth import BENCH
from .growth_table import in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..measure.records import Record


def figures(records: Sequence[Record]) -> list[Chart]:
    chosen = _growth(records)
    found = []
    for name, title, unit, field, scale in (
        ("growth-time", "Time to read one input of n tokens", "seconds", "best", 1.0),
        ("growth-memory", "Memory to read one input of n tokens", "megabytes", "memory_work", 1e-6),
    ):
        lines = []
        for who, label, colour in (
            (FULL, "full attention", VANILLA),
            (OURS, "Linformer", OUR_COLOURS[0]),
        ):
            points = [
                (r["length"], r[field] * scale)
                for r in chosen
                if r["contestant"] == who and r[field]
            ]
            if points:
                lines.append(
                    Line(
                        name=label,
                        x=tuple(float(n) for n, _ in points),
                        y=tuple(value for _, value in points),
                        colour=colour,
                        dash="dash" if who == FULL else "solid",
                    )
                )
        if lines:
            lengths = sorted({record["length"] for record in chosen})
            found.append(
                Chart(
                    name=name,
                    title=title,
                    caption=f"{_caption(chosen)}.",
                    x=Axis(title="tokens n", scale="log", ticks=length_ticks(lengths)),
                    y=Axis(title=unit, scale="log"),
                    lines=tuple(lines),
                )
            )
    return found


def sheets(records: Sequence[Record]) -> list[Sheet]:
    chosen = _growth(records)
    if not chosen:
        return []
    rows = []
    for length in sorted({record["length"] for record in chosen}):
        at = {record["contestant"]: record for record in chosen if record["length"] == length}
        row = [Entry(f"{length:,}")]
        for field, told in (("best", quantities.seconds), ("memory_work", quantities.size)):
            full, ours = (at.get(who, {}).get(field) for who in (FULL, OURS))
            note = at.get(FULL, {}).get("note") if full is None and field == "best" else None
            row += [
                Entry(note, "quiet") if note else Entry(told(full)),
                Entry(told(ours)),
                Entry(quantities.ratio(full / ours if full and ours else None)),
            ]
        rows.append(tuple(row))
    return [
        Sheet(
            title="Time and memory to read one long input",
            columns=(
                "tokens",
                "full attention",
                "Linformer",
                "times faster",
                "memory, full",
                "memory, Linformer",
                "times less",
            ),
            rows=tuple(rows),
            caption=_caption(chosen),
        )
    ]


def in_words_of(records: Sequence[Record]) -> str | None:
    chosen = _growth(records)
    return in_words(chosen) if chosen else None


def _growth(records: Sequence[Record]) -> list[Record]:
    """Of the width that most was measured of; the last record of each length and contestant."""
    by_width: dict[tuple[int, ...], dict[tuple[int, str], Record]] = {}
    for record in records:
        if record.get("bench") == BENCH:
            width = tuple(record[name] for name in ("dim", "num_heads", "k", "depth", "batch"))
            by_width.setdefault(width, {})[record["length"], record["contestant"]] = record
    chosen = max(by_width.values(), key=len, default={})
    return [chosen[key] for key in sorted(chosen)]


def _caption(records: Sequence[Record]) -> str:
    first = records[0]
    return (
        f"dim {first['dim']}, {first['num_heads']} heads, k {first['k']}, depth {first['depth']}, "
        f"inference, memory beyond weights and input; {provenance(records)}"
    )
