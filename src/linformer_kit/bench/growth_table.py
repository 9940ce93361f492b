"""The table of `linformer bench growth`, and its last line in words, made of its records."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from ..measure import quantities
from ..measure.records import Record
from .contestants import FULL, OURS

BAR = 10  # characters of the longest bar

Row = dict[str, Record]  # the records of one length, by contestant


def growth_table(records: list[Record]) -> Table:
    rows = _rows(records)
    compared = any(FULL in row for row in rows)
    table = Table(
        title="Time and memory to read one long input",
        caption=_sizes(records),
        box=box.SIMPLE_HEAVY,
        padding=(0, 1, 0, 0),  # with the usual one it does not fit a terminal of 80 columns
        title_style="bold",
    )
    table.add_column("tokens", justify="right", style="bold")
    if compared:
        table.add_column("full\nattention", justify="right")
    table.add_column("\nLinformer", justify="right", style="cyan")
    if compared:
        table.add_column("\ntimes faster", style="green", no_wrap=True)
        table.add_column("full\nmemory", justify="right")
    table.add_column("Linformer\nmemory", justify="right", style="cyan")
    if compared:
        table.add_column("times\nless", justify="right", style="green")
    else:
        table.add_column("with weights\nand input", justify="right")
        table.add_column("tokens\na second", justify="right", style="green")
    longest_bar = max((times for row in rows if (times := _ratio(row, "best"))), default=1.0)
    for row in rows:
        ours, full = row.get(OURS, {}), row.get(FULL, {})
        tokens = next(iter(row.values()))["length"]
        time, memory = ours.get("best"), ours.get("memory_work")
        if compared:
            table.add_row(
                f"{tokens:,}",
                _or_note(full, quantities.seconds(full.get("best"))),
                _or_note(ours, quantities.seconds(time)),
                _bar(_ratio(row, "best"), longest_bar),
                quantities.size(full.get("memory_work")),
                quantities.size(memory),
                quantities.ratio(_ratio(row, "memory_work")),
            )
        else:
            table.add_row(
                f"{tokens:,}",
                _or_note(ours, quantities.seconds(time)),
                quantities.size(memory),
                quantities.size(ours.get("memory_total")),
                "-" if time is None else f"{_tokens_a_second(ours):,.0f}",
            )
    return table


def in_words(records: list[Record]) -> str:
    """The longest length that was measured, in a sentence."""
    rows = _rows(records)
    for row in reversed(rows):
        times_faster = _ratio(row, "best")
        if times_faster is not None:
            return _compared_in_words(row, times_faster)
    for row in reversed(rows):
        if OURS in row and row[OURS]["best"] is not None:
            return _alone_in_words(row[OURS])
    return "Nothing was measured."


def _compared_in_words(row: Row, times_faster: float) -> str:
    words = (
        f"At {row[OURS]['length']:,} tokens Linformer takes "
        f"{quantities.fraction(times_faster)} of the time"
    )
    times_less = _ratio(row, "memory_work")
    if times_less is not None:
        words += f" and {quantities.fraction(times_less)} of the memory"
    return f"{words} of full attention."


def _alone_in_words(ours: Record) -> str:
    words = (
        f"Linformer reads {ours['length']:,} tokens in {quantities.seconds(ours['best'])}, "
        f"{_tokens_a_second(ours):,.0f} a second"
    )
    if ours["memory_work"] is not None:
        words += (
            f", in {quantities.size(ours['memory_work'])} of memory "
            f"({quantities.size(ours['memory_total'])} with its weights and the input)"
        )
    return f"{words}."


def _rows(records: list[Record]) -> list[Row]:
    rows: dict[int, Row] = {}
    for record in records:
        rows.setdefault(record["length"], {})[record["contestant"]] = record
    return [rows[length] for length in sorted(rows)]


def _ratio(row: Row, field: str) -> float | None:
    """Full attention's over ours."""
    full, ours = (row.get(name, {}).get(field) for name in (FULL, OURS))
    return full / ours if full and ours else None


def _tokens_a_second(record: Record) -> float:
    tokens: int = record["length"] * record["batch"]
    best: float = record["best"]
    return tokens / best


def _or_note(record: Record, text: str) -> Text:
    if record.get("best") is None and record.get("note"):
        return Text(record["note"], style="yellow")
    return Text(text)


def _bar(times: float | None, longest: float) -> str:
    if times is None:
        return "-"
    return f"{quantities.ratio(times):>6} {'█' * round(BAR * times / longest)}"


def _sizes(records: list[Record]) -> str | None:
    if not records:
        return None
    first = records[0]
    machine = first["machine"]
    layers = "1 layer" if first["depth"] == 1 else f"{first['depth']} layers"
    return (
        f"{layers} of dim {first['dim']}, {first['num_heads']} heads, k = {first['k']}, "
        f"inference; memory beyond weights and input; {machine['cpu']}, "
        f"{machine['threads']} threads"
    )
