"""The table and figures of `linformer bench decode`, made of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..figures.figure import OURS, VANILLA, Axis, Chart, Line, length_ticks
from ..figures.sheet import Sheet, entries
from ..measure import quantities
from ..measure.cells import latest
from ..measure.provenance import provenance
from .decode import BENCH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..measure.records import Record

Value = dict[tuple[int, str], float]  # by context and decoder


def sheets(records: Sequence[Record]) -> list[Sheet]:
    chosen = latest(records, BENCH)
    if not chosen:
        return []
    times, memory, _ = _read(chosen)
    columns = ["context", "vanilla", "Linformer", "times faster"]
    if memory:
        columns += ["memory, vanilla", "memory, Linformer"]
    rows = []
    for context in sorted({context for context, _ in [*times, *memory]}):
        ours, full = times.get((context, "linformer")), times.get((context, "vanilla"))
        row = [
            f"{context:,}",
            quantities.seconds(full),
            quantities.seconds(ours),
            quantities.ratio(full / ours if full and ours else None),
        ]
        if memory:
            row += [_size(memory.get((context, kind))) for kind in ("vanilla", "linformer")]
        rows.append(entries(*row))
    told = "memory: the state and the peak of generating; " if memory else ""
    return [
        Sheet(
            title="One more token, after so many",
            columns=tuple(columns),
            rows=tuple(rows),
            caption=f"{told}{_caption(chosen)}",
        )
    ]


def figures(records: Sequence[Record]) -> list[Chart]:
    chosen = latest(records, BENCH)
    if not chosen:
        return []
    times, memory, _ = _read(chosen)
    found = []
    for name, title, unit, values, scale in (
        ("decode-time", "Time of one more token", "milliseconds a token", times, 1e3),
        ("decode-memory", "Memory while generating", "megabytes", memory, 1e-6),
    ):
        if not values:
            continue
        contexts = sorted({context for context, _ in values})
        lines = []
        for kind, colour in (("vanilla", VANILLA), ("linformer", OURS[0])):
            points = [(c, values[c, kind] * scale) for c in contexts if (c, kind) in values]
            label = "Linformer" if kind == "linformer" else "vanilla, with a cache"
            lines.append(
                Line(
                    name=label,
                    x=tuple(float(c) for c, _ in points),
                    y=tuple(value for _, value in points),
                    colour=colour,
                    dash="dash" if kind == "vanilla" else "solid",
                    labels=tuple(f"{label}: {v:.3g} {unit} after {c:,} tokens" for c, v in points),
                )
            )
        found.append(
            Chart(
                name=name,
                title=title,
                caption=f"A state of constant size makes a flat line. {_caption(chosen)}.",
                x=Axis(title="tokens before", scale="log", ticks=length_ticks(contexts)),
                y=Axis(title=unit, scale="log"),
                lines=tuple(lines),
            )
        )
    return found


def _read(records: Sequence[Record]) -> tuple[Value, Value, Value]:
    """Seconds a token, peak bytes, bytes of the state."""
    times: Value = {}
    memory: Value = {}
    state: Value = {}
    for record in records:
        cell = record["cell"]
        for result in record["results"]:
            key = (cell["context"], result["decoder"])
            if result.get("best") is not None:
                times[key] = result["best"] / cell["steps"]
                state[key] = result["state"]
            elif result.get("total") is not None:
                memory[key] = result["total"]
    return times, memory, state


def _size(value: float | None) -> str:
    return quantities.size(None if value is None else round(value))


def _caption(records: Sequence[Record]) -> str:
    cell = records[0]["cell"]
    return (
        f"{cell['depth']} layers, dim {cell['dim']}, {cell['num_heads']} heads, k {cell['k']}, "
        f"window {cell['window']}, batch {cell['batch']}; vanilla's cache is copied to grow "
        f"by a row, as transformers' DynamicCache is; {provenance(records)}"
    )
