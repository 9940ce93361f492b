"""The table and the heat maps of the needle test, made of its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...measure.provenance import provenance
from ..figures.figure import Axis, HeatMap
from ..figures.sheet import Sheet, entries
from .needle import KIND
from .spectrum_view import short_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...measure.records import Record


def latest_needles(records: Sequence[Record]) -> list[Record]:
    """The last test of each model and way of reading."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        if record.get("kind") == KIND:
            found[record["model"], record["policy"]] = record
    return list(found.values())


def sheet(record: Record) -> Sheet:
    """A row a length: the mean over depths of each haystack, and how much was read."""
    parts = record["parts"]
    rows = [
        entries(
            f"{cells[0]['length']:,}",
            *(f"{mean(cell):.1%}" for cell in cells),
            f"{_read(cells):.0%}",
            f"{max(cell['pieces'] for cell in cells)}",
        )
        for cells in zip(*(part["lengths"] for part in parts), strict=True)
    ]
    return Sheet(
        title=f"Needles found by {short_name(record)}",
        columns=("tokens", *(part["haystack"] for part in parts), "read", "pieces"),
        rows=tuple(rows),
        caption=_caption(record),
        machine=provenance([record]),
    )


def figures(record: Record) -> list[HeatMap]:
    """One heat map a haystack: depth by length."""
    found = []
    for part in record["parts"]:
        cells = part["lengths"]
        values = tuple(zip(*(cell["accuracy"] for cell in cells), strict=True))
        found.append(
            HeatMap(
                name=f"needle-{part['haystack']}",
                title=f"{part['haystack']}: {short_name(record)}",
                caption=_caption(record),
                machine=provenance([record]),
                x=Axis(title="tokens of the document"),
                y=Axis(title="depth of the needle"),
                columns=tuple(f"{cell['length']:,}" for cell in cells),
                rows=tuple(f"{depth:.0%}" for depth in record["depths"]),
                values=values,
                labels=tuple(tuple(f"{value:.0%}" for value in row) for row in values),
                unit="found",
                range=(0.0, 1.0),
                written=True,
            )
        )
    return found


def in_words(record: Record) -> str:
    """At which lengths the needles are found, and what was not read."""
    said = "; ".join(
        f"{part['haystack']}: {_lengths_of_found(part['lengths'])}" for part in record["parts"]
    )
    cells = [cell for part in record["parts"] for cell in part["lengths"]]
    text = (
        f"{short_name(record)} finds at least 95% of the needles among {record['candidates']} "
        f"documents: {said}."
    )
    if record["policy"] == "chunk" and any(cell["pieces"] > 1 for cell in cells):
        text += (
            f" Documents of more than {record['longest']:,} tokens are read in pieces, whose "
            "vectors are averaged."
        )
    unread = sum(cell["tokens_total"] - cell["tokens_read"] for cell in cells)
    if unread:
        total = sum(cell["tokens_total"] for cell in cells)
        text += (
            f" Only the first {record['longest']:,} tokens of a document are read: {unread:,} of "
            f"{total:,} tokens were not."
        )
    return text


def _lengths_of_found(cells: Sequence[Record]) -> str:
    """The lengths with at least 95 %: one that is missed may be shorter than one that is not."""
    found = [cell["length"] for cell in cells if mean(cell) >= 0.95]
    if not found:
        return "at no length"
    if all(mean(cell) >= 0.95 for cell in cells if cell["length"] <= max(found)):
        return f"up to {max(found):,} tokens"
    return f"at {' and '.join(f'{length:,}' for length in found)} tokens alone"


def mean(cell: Record) -> float:
    """Over depths."""
    return float(sum(cell["accuracy"]) / len(cell["accuracy"]))


def _read(cells: Sequence[Record]) -> float:
    return sum(c["tokens_read"] for c in cells) / sum(c["tokens_total"] for c in cells)


def _caption(record: Record) -> str:
    return (
        f"{record['candidates']} candidates a length, {record['longest']:,} tokens read at once, "
        f"on_overflow: {record['policy']}"
    )
