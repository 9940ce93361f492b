"""The tables of `linformer bench attention`, made of its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from ..measure import quantities
from ..measure.records import Record
from .attention import GEMM
from .contestants import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Cells = dict[str, Record]  # the records of one row, by contestant


def time_table(records: list[Record]) -> Table:
    """Our best time, how many times faster that is than each other, and the share of the GEMM."""
    chosen = [record for record in records if record["bench"] == "attention"]

    def last(cells: Cells) -> str:
        share = cells[OURS]["share_of_gemm"] if OURS in cells else None
        return "-" if share is None else f"{share:.0%}"

    return _table(
        chosen,
        title=f"{OURS}: time of one step (best of the rounds)",
        ours=lambda record: quantities.seconds(record["best"]),
        theirs=lambda _, record: quantities.ratio(record["ours_times_faster"]),
        compared="x faster\nthan",
        last=("% of\nGEMM\nrate", last),
    )


def memory_table(records: list[Record]) -> Table | None:
    """Our peak in a training step, and how many times less that is; None if not measured."""
    chosen = [record for record in records if record["bench"] == "attention memory"]
    if not chosen:
        return None

    def times_less(ours: Record, theirs: Record) -> str:
        if theirs["work"] is None or not ours["work"]:
            return theirs["problem"] or "-"
        return quantities.ratio(theirs["work"] / ours["work"])

    return _table(
        chosen,
        title=f"{OURS}: peak memory of one training step (beyond weights and input)",
        ours=lambda record: record["problem"] or quantities.size(record["work"]),
        theirs=times_less,
        compared="x less\nthan",
    )


def notes(records: list[Record]) -> Iterator[str]:
    """Everything that did not go as asked for."""
    timed = [record for record in records if record.get("best") is not None]
    slow = [record for record in timed if len(record["seconds"]) < record["rounds"]]
    if slow:
        yield f"{len(slow)} of {len(timed)} took over a second a run and had fewer rounds."
    for record in records:
        note = record.get("note") or record.get("problem")
        if note:
            yield (
                f"{record['contestant']}, {record['layer']}, {record['mode']}, "
                f"n {record['length']}, k {record['k']}: {note}"
            )


def _table(
    records: list[Record],
    *,
    title: str,
    ours: Callable[[Record], str],
    theirs: Callable[[Record, Record], str],
    compared: str,
    last: tuple[str, Callable[[Cells], str]] | None = None,
) -> Table:
    others = list(
        dict.fromkeys(r["contestant"] for r in records if r["contestant"] not in (OURS, GEMM))
    )
    # Without the usual padding it fits a terminal of 80 columns.
    table = Table(title=title, caption=_sizes(records), box=box.SIMPLE_HEAVY, padding=0)
    for name in ("layer", "mode"):
        table.add_column(name, no_wrap=True)
    for name in ("n", "k", "ours"):
        table.add_column(
            name, justify="right", no_wrap=True, style="cyan" if name == "ours" else ""
        )
    for other in others:
        heading = other.replace("-", "-\n")
        table.add_column(f"{compared} {heading}", justify="right", style="green")
    if last is not None:
        table.add_column(last[0], justify="right")
    for cells in _rows(records):
        mine = cells.get(OURS)
        any_of_them = next(iter(cells.values()))
        table.add_row(
            any_of_them["layer"],
            any_of_them["mode"],
            f"{any_of_them['length']:,}",
            str(any_of_them["k"]),
            "-" if mine is None else ours(mine),
            *(
                "-" if mine is None or other not in cells else theirs(mine, cells[other])
                for other in others
            ),
            *(() if last is None else (last[1](cells),)),
        )
    return table


def _rows(records: list[Record]) -> Iterator[Cells]:
    rows: dict[tuple[object, ...], Cells] = {}
    for record in records:
        key = tuple(record[name] for name in ("length", "k", "layer", "mode"))
        rows.setdefault(key, {})[record["contestant"]] = record
    yield from rows.values()


def _sizes(records: list[Record]) -> str | None:
    if not records:
        return None
    first = records[0]
    return (
        f"dim {first['dim']}, {first['num_heads']} heads, batch {first['batch']}, "
        f"{first['machine']['threads']} threads, {first['machine']['cpu']}"
        + (", memory kept" if first.get("keep_memory") else "")
    )
