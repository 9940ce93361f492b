"""A table as plain data, shown in a terminal, on a page or in Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .text import for_markdown

if TYPE_CHECKING:
    from rich.table import Table

Tone = Literal["plain", "good", "bad", "quiet"]


@dataclass(frozen=True)
class Entry:
    """One value of a table. A terminal draws `bar`, a fraction of the longest, beside it."""

    text: str
    tone: Tone = "plain"
    bar: float | None = None

    @property
    def with_bar(self) -> str:
        return self.text if self.bar is None else f"{self.text:>6} {'█' * round(10 * self.bar)}"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table. A row has an entry for every column; the first `keys` of them are its names.

    machine: what its figures were measured on.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: str = ""
    machine: str = ""
    keys: int = 1
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"{self.title}: a row has {len(row)} entries, the columns are "
                    f"{len(self.columns)}."
                )

    def as_rich(self) -> Table:
        """Without caption and notes, which are wider than the table."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        styles = {"plain": "", "good": "green", "bad": "yellow", "quiet": "dim"}
        table = Table(
            title=self.title, box=box.SIMPLE_HEAVY, padding=(0, 1, 0, 0), title_style="bold"
        )
        for number, column in enumerate(self.columns):
            bars = any(row[number].bar is not None for row in self.rows)
            left = bars or number < self.keys
            table.add_column(Text(column), justify="left" if left else "right", no_wrap=bars)
        for row in self.rows:
            table.add_row(*(Text(entry.with_bar, style=styles[entry.tone]) for entry in row))
        return table

    def as_markdown(self) -> str:
        """A Markdown table, without title and notes."""
        heads = [column.replace("\n", " ") for column in self.columns]
        marks = ["---" if number < self.keys else "---:" for number in range(len(heads))]
        rows = [[for_markdown(entry.text) for entry in row] for row in self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, marks, *rows))


def entries(*texts: str | Entry) -> tuple[Entry, ...]:
    """A row; plain strings are entries without a tone."""
    return tuple(text if isinstance(text, Entry) else Entry(text) for text in texts)
