"""The table and images of `linformer heads`, made of its record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...measure.provenance import provenance
from ..figures.figure import Axis, HeatMap
from ..figures.sheet import Entry, Sheet, entries
from .heads import KIND
from .spectrum_view import short_name
from .tokens import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...measure.records import Record

SHOWN = 12  # rows of the table


def latest_heads(records: Sequence[Record]) -> list[Record]:
    """The last record of each head of each model."""
    found: dict[tuple[str, int, int], Record] = {}
    for record in records:
        if record.get("kind") == KIND:
            found[record["model"], record["layer"], record["head"]] = record
    return list(found.values())


def sheet(record: Record) -> Sheet:
    rows = sorted(enumerate(record["rows"], start=1), key=lambda row: -row[1]["used"])
    average = 1 / len(rows)
    return Sheet(
        title=f"What the rows look at: {_where(record)}",
        columns=(
            "row",
            "attention it gets",
            "times the average",
            "middle",
            "positions",
            "heaviest",
        ),
        rows=tuple(
            entries(
                f"{number}",
                f"{row['used']:.2%}",
                f"{row['used'] / average:.1f}x",
                f"{row['middle']:.0f} ± {row['width']:.0f}",
                f"{row['positions_in_use']:.0f}",
                Entry("  ".join(_token(token) for token in row["tokens"]), "quiet"),
            )
            for number, row in rows[:SHOWN]
        ),
        caption=f"the {min(SHOWN, len(rows))} of {len(rows)} rows with most attention; positions: "
        f"how many a row is made of, 1 to {record['length']}; "
        + (f"{_shares(record)}; " if "shares" in record else "")
        + _caption(record),
        machine=provenance([record]),
    )


def figures(record: Record) -> list[HeatMap]:
    slug = f"heads-{record['layer']}-{record['head']}"
    found = [
        _image(
            record["attention"],
            x="row of E",
            y="token",
            name=f"{slug}-attention",
            title=f"Attention, n x k: {_where(record)}",
            caption=f"Each line is a token, each column a row of E. {_caption(record)}.",
            machine=provenance([record]),
        )
    ]
    if "exact" in record:
        found.append(
            _image(
                record["exact"],
                name=f"{slug}-window",
                title=f"Exact attention, n x n: {_where(record)}",
                caption=f"A window of {record['window']} and {record['global_tokens']} global "
                f"tokens; {_shares(record)}. {_caption(record)}.",
                machine=provenance([record]),
                x="position",
                y="token",
            )
        )
    for number, matrix in enumerate(record["matrices"], start=1):
        pooled = "Root mean square of blocks. " if matrix["pooled"] else ""
        kind = f"{record['projection']} projection, sharing {record['sharing']}. {pooled}"
        found.append(
            _image(
                matrix,
                x="position in the text",
                y="row of E",
                name=f"{slug}-e{number}",
                title=f"{matrix['name']} of layer {record['layer']}: {short_name(record)}",
                caption=f"{kind}{_caption(record)}.",
                machine=provenance([record]),
                diverging=not matrix["pooled"],
            )
        )
    return found


def _image(image: Record, *, x: str, y: str, **more: Any) -> HeatMap:
    values = image["values"]
    return HeatMap(
        x=Axis(title=x),
        y=Axis(title=y),
        columns=tuple(_places(image["columns"], len(values[0]))),
        rows=tuple(_places(image["rows"], len(values))),
        values=tuple(map(tuple, values)),
        unit="weight",
        **more,
    )


def _places(count: int, shown: int) -> list[str]:
    return [str(1 + round(number * count / shown)) for number in range(shown)]


def _token(token: Record) -> str:
    return f"{'+' if token['sign'] > 0 else '-'}{visible(token['text'])}@{token['position']}"


def _where(record: Record) -> str:
    return f"layer {record['layer']}, head {record['head']} of {short_name(record)}"


def _shares(record: Record) -> str:
    return "attention to " + ", ".join(
        f"{name} {share:.0%}" for name, share in record["shares"].items()
    )


def _caption(record: Record) -> str:
    return f"One text of {record['length']} tokens"
