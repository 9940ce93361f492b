"""Tables and charts declared as data: pivots over flat records.

`Results` says how the records of one benchmark are read: which fields identify a result, which
sizes all shown results share, what is derived from them, and the tables and charts. Records with
the same keys are merged, so time and memory that were measured apart share a row; later
measurements replace earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...measure import quantities
from ...measure.provenance import provenance
from ...measure.records import Record
from ..figures.figure import (
    OURS,
    Axis,
    BarChart,
    Chart,
    Dash,
    Figure,
    Group,
    HeatMap,
    Line,
    length_ticks,
)
from ..figures.sheet import Entry, Sheet, entries

Row = Mapping[Any, Record]  # by the value of `across`
LONGEST_NOTE = 24  # characters that fit into a table


@dataclass(frozen=True)
class Column:
    """One field of the record at `of`, a value of the table's `across`.

    unless: left out if this value of `across` is present. A column without any value is left out.
    """

    title: str
    field: str
    show: Callable[[Any], str | Entry]
    of: Any = None
    bar: bool = False
    unless: Any = None

    def is_in(self, rows: Sequence[Row]) -> bool:
        found = [row[self.of] for row in rows if self.of in row]
        return not (self.unless is not None and any(self.unless in row for row in rows)) and any(
            r.get(self.field) is not None or (self.field == "best" and r.get("note")) for r in found
        )

    def entry(self, record: Record | None, rows: Iterable[Row]) -> str | Entry:
        value = None if record is None else record.get(self.field)
        if value is None:
            note = record.get("note") if record is not None and self.field == "best" else None
            return Entry(short_note(note) if note else "-", "quiet")
        if not self.bar:
            return self.show(value)
        values = [row[self.of].get(self.field) for row in rows if self.of in row]
        (entry,) = entries(self.show(value))
        return replace(entry, bar=value / max(one for one in values if one is not None))


@dataclass(frozen=True, kw_only=True)
class Footer:
    """A last row: an entry made of all records of a column."""

    title: str
    entry: Callable[[list[Record]], str | Entry]


@dataclass(frozen=True, kw_only=True)
class View:
    """What tables and charts have in common.

    title: formatted with the fields of the first record.
    where: fields that the records must have with these values.
    split: one table or chart for each combination of these fields.
    same: whether the sizes that all results share are selected.
    """

    title: str
    where: Mapping[str, Any] = field(default_factory=dict)
    split: tuple[str, ...] = ()
    same: bool = True
    caption: str = ""

    def groups(self, records: Sequence[Record]) -> list[list[Record]]:
        chosen = [r for r in records if all(r.get(n) == v for n, v in self.where.items())]
        return list(grouped(chosen, self.split).values()) if chosen else []


@dataclass(frozen=True, kw_only=True)
class Table(View):
    """rows: (heading, field) pairs. `entry` is shown for every value of `across`, then `columns`.

    shown: which records have an `entry`, and so a column.
    """

    rows: tuple[tuple[str, str], ...]
    across: str = ""
    entry: Callable[[Record], str | Entry] | None = None
    shown: Callable[[Record], bool] = lambda record: True
    heading: Callable[[Any], str] = str
    empty: str = "-"
    columns: tuple[Column, ...] = ()
    footers: tuple[Footer, ...] = ()
    notes: Callable[[list[Record]], Sequence[str]] = lambda records: ()

    def sheet(self, records: list[Record], caption: str) -> Sheet | None:
        def key_of(record: Record) -> tuple[Any, ...]:
            return tuple(record.get(name) for _, name in self.rows)

        shown = [r for r in records if self.entry and self.shown(r)]
        having = {key_of(record) for record in shown}
        placed: dict[tuple[Any, ...], dict[Any, Record]] = {}  # by row, then by `across`
        for record in records:
            key = key_of(record)
            if None not in key and (key in having or not self.entry):
                placed.setdefault(key, {})[record.get(self.across)] = record
        across = _ordered(dict.fromkeys(r[self.across] for r in shown))
        columns = [one for one in self.columns if one.is_in(list(placed.values()))]
        rows: list[Sequence[str | Entry]] = []
        for key in _ordered(placed):
            row = placed[key]
            missing = Entry(self.empty, "quiet")
            rows.append(
                [
                    *map(_text, key),
                    *(self.entry(row[v]) if self.entry and v in row else missing for v in across),
                    *(column.entry(row.get(column.of), placed.values()) for column in columns),
                ]
            )
        for footer in self.footers:
            of_column = ([r for r in records if r[self.across] == value] for value in across)
            rows.append([footer.title, *map(footer.entry, of_column)])
        if not rows or not (across or columns):
            return None
        return Sheet(
            title=self.title.format(**records[0]),
            columns=(
                *(heading for heading, _ in self.rows),
                *(self.heading(value) for value in across),
                *(one.title for one in columns),
            ),
            rows=tuple(entries(*row) for row in rows),
            caption=f"{self.caption}{caption}",
            keys=len(self.rows),
            notes=tuple(self.notes(records)),
        )


@dataclass(frozen=True, kw_only=True)
class Style:
    """How one series of a chart is drawn."""

    label: str
    colour: str
    dash: Dash = "solid"


@dataclass(frozen=True, kw_only=True)
class Lines(View):
    """A line for each value of `series`: field `y` over field `x`, both logarithmic.

    at: the end of a label, formatted with x. bars: bars instead, where there is a single x.
    """

    name: str
    x: str = "length"
    x_title: str = "tokens n"
    series: str = "model"
    y: str = "best"
    unit: str = "seconds"
    scale: float = 1.0
    show: Callable[[Any], str]
    at: str = "at n = {:,}"
    style: Callable[[Record, int], Style]
    bars: bool = False

    def figure(self, records: list[Record], caption: str) -> Figure | None:
        found = [r for r in records if r.get(self.y) is not None and r.get(self.x) is not None]
        ticks = sorted({r[self.x] for r in records if r.get(self.x) is not None})
        if not found:
            return None
        title = self.title.format(**records[0])
        lines = []
        for number, ones in enumerate(grouped(found, (self.series,)).values()):
            style = self.style(ones[0], number)
            points = sorted((r[self.x], r[self.y]) for r in ones)
            lines.append(
                Line(
                    name=style.label,
                    x=tuple(float(x) for x, _ in points),
                    y=tuple(y * self.scale for _, y in points),
                    colour=style.colour,
                    dash=style.dash,
                    labels=tuple(
                        f"{style.label}: {self.show(y)} {self.at.format(x)}" for x, y in points
                    ),
                )
            )
        name = "-".join([self.name, *(str(records[0][one]) for one in self.split)])
        if self.bars and len(ticks) == 1:
            return Bars(
                name=name, title=f"{title} at n = {ticks[0]:,}", category=self.series,
                y=self.y, unit=self.unit, scale=self.scale, show=self.show,
            ).figure(found, caption)  # fmt: skip
        return Chart(
            name=name,
            title=title,
            caption=f"{self.caption}{caption}.",
            x=Axis(title=self.x_title, scale="log", ticks=length_ticks(ticks)),
            y=Axis(title=self.unit.format(**records[0]), scale="log"),
            lines=tuple(lines),
        )


@dataclass(frozen=True, kw_only=True)
class Bars(View):
    """A bar for each category, at the largest `x`."""

    name: str
    category: str = "model"
    x: str = "length"
    y: str
    unit: str
    scale: float = 1.0
    show: Callable[[Any], str]

    def figure(self, records: list[Record], caption: str) -> Figure | None:
        found = [r for r in records if r.get(self.y) is not None]
        largest = max((r[self.x] for r in found), default=None)
        values = {r[self.category]: r[self.y] for r in found if r[self.x] == largest}
        if not values:
            return None
        labels = tuple(f"{name}: {self.show(value)}" for name, value in values.items())
        bars = tuple(value * self.scale for value in values.values())
        return BarChart(
            name=self.name,
            title=self.title.format(**{**records[0], self.x: largest}),
            caption=f"{self.caption}{caption}.",
            value=Axis(title=self.unit),
            categories=tuple(map(str, values)),
            groups=(Group(name=self.unit, values=bars, colour=OURS[0], labels=labels),),
        )


@dataclass(frozen=True, kw_only=True)
class Heat(View):
    """A heat map of field `value`."""

    name: str
    rows: str
    rows_title: str
    across: str
    value: str
    unit: str
    show: Callable[[float], str]

    def figure(self, records: list[Record], caption: str) -> Figure | None:
        values = {(r[self.rows], r[self.across]): r.get(self.value) for r in records}
        rows, columns = sorted({row for row, _ in values}), sorted({col for _, col in values})
        if not values:
            return None
        cells = [[values.get((row, column)) for column in columns] for row in rows]
        return HeatMap(
            name=self.name,
            title=self.title,
            caption=f"{self.caption}{caption}.",
            x=Axis(title=self.across),
            y=Axis(title=self.rows_title),
            columns=tuple(map(_text, columns)),
            rows=tuple(map(_text, rows)),
            values=tuple(map(tuple, cells)),
            labels=tuple(
                tuple("" if one is None else self.show(one) for one in row) for row in cells
            ),
            unit=self.unit,
            written=True,
        )


@dataclass(frozen=True, kw_only=True)
class Drawn(View):
    """A figure of its own kind, for what no pivot shows."""

    title: str = ""
    draw: Callable[[list[Record], str], Figure]

    def figure(self, records: list[Record], caption: str) -> Figure | None:
        return self.draw(records, caption)


@dataclass(frozen=True, kw_only=True)
class Results:
    """How the records of a benchmark are shown.

    keys: the fields that identify a result.
    sizes: the fields that all shown results share: those of which most was measured.
    caption: formatted with the fields of the first record.
    derive: adds fields to the merged records.
    short, title, lead: of its section in a report.
    """

    bench: str
    keys: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    caption: str
    derive: Callable[[list[Record]], object] = lambda records: None
    tables: tuple[Table, ...] = ()
    charts: tuple[Lines | Bars | Heat | Drawn, ...] = ()
    short: str = ""
    title: str = ""
    lead: str = ""

    def select(self, records: Sequence[Record], *, same: bool = True) -> list[Record]:
        """Merged records with derived fields."""
        return self._merged(self._raw(records, same=same))

    def sheets(self, records: Sequence[Record]) -> list[Sheet]:
        found = [
            replace(sheet, machine=machine)
            for view in self.tables
            for group, caption, machine in self._groups(view, records)
            if (sheet := view.sheet(group, caption)) is not None
        ]
        if found:
            found[0] = replace(found[0], notes=(*found[0].notes, *self.notes(records)))
        return found

    def figures(self, records: Sequence[Record]) -> list[Figure]:
        return [
            replace(figure, machine=machine)
            for view in self.charts
            for group, caption, machine in self._groups(view, records)
            if (figure := view.figure(group, caption)) is not None
        ]

    def notes(self, records: Sequence[Record]) -> list[str]:
        """What was skipped or failed, in a line each."""
        return [
            f"{', '.join(_named(record, name) for name in self.keys if _named(record, name))}: "
            f"{record['note']}"
            for record in self.select(records)
            if record.get("note")
        ]

    def _groups(self, view: View, records: Sequence[Record]) -> list[tuple[list[Record], str, str]]:
        """Records, their caption and their machine for each table or chart of a view."""
        raw = self._raw(records, same=view.same)
        merged = self._merged(raw)
        return [
            (group, self.caption.format(**_with_nouns(group[0])), provenance(raw))
            for group in view.groups(merged)
        ]

    def _raw(self, records: Sequence[Record], *, same: bool) -> list[Record]:
        chosen = [record for record in records if record.get("bench") == self.bench]
        if not same or not self.sizes or not chosen:
            return chosen
        groups = grouped(chosen, self.sizes)
        return max(reversed(groups.values()), key=len)

    def _merged(self, records: Sequence[Record]) -> list[Record]:
        merged: dict[tuple[Any, ...], Record] = {}
        for record in records:
            one = merged.setdefault(tuple(record.get(name) for name in self.keys), {})
            one.update({n: v for n, v in record.items() if v is not None or n not in one})
        found = list(merged.values())
        self.derive(found)
        return found


def grouped(records: Sequence[Record], names: Sequence[str]) -> dict[tuple[Any, ...], list[Record]]:
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record.get(name) for name in names), []).append(record)
    return found


def add_ratio(
    records: Sequence[Record],
    name: str,
    *,
    of: str,
    reference: Mapping[str, Any],
    by: Sequence[str],
    inverse: bool = False,
) -> None:
    """record[name] = the reference's field `of` / the record's, among records that agree in `by`.

    inverse: the record's over the reference's.
    """
    for group in grouped(records, by).values():
        against = next(
            (r.get(of) for r in group if all(r.get(n) == v for n, v in reference.items())), None
        )
        for record in group:
            own = record.get(of)
            ratio = against / own if against and own else None
            record[name] = 1 / ratio if inverse and ratio else ratio


def short_note(note: str) -> str:
    return note if len(note) <= LONGEST_NOTE else note.partition(":")[0][:LONGEST_NOTE]


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _named(record: Record, name: str) -> str:
    value = record.get(name)
    if value is None:
        return ""
    if not isinstance(value, int):
        return str(value)
    return f"{'n' if name == 'length' else name} {value:,}"


def _ordered(values: Iterable[Any]) -> list[Any]:
    """Numbers by size, anything else as it came."""
    found = list(values)
    flat = [one for value in found for one in (value if isinstance(value, tuple) else (value,))]
    return sorted(found) if all(isinstance(one, int | float) for one in flat) else found


def _with_nouns(record: Record) -> Record:
    """The fields of a record, and the counts of them as captions say them."""
    nouns = {"heads": ("num_heads", "head"), "layers": ("depth", "layer")}
    counted = {
        name: quantities.count(record[field], noun)
        for name, (field, noun) in nouns.items()
        if field in record
    }
    return {**record, **counted}
