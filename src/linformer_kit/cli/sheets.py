"""Tables in a terminal, with what belongs to them in lines below."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ..evidence.figures.sheet import Sheet


def show_sheets(console: Console, sheets: Sequence[Sheet]) -> None:
    """Every table; then notes, captions and machines, each once."""
    for sheet in sheets:
        console.print(sheet.as_rich())
    lines = [note for sheet in sheets for note in sheet.notes]
    lines += [sheet.caption for sheet in sheets if sheet.caption]
    lines += [sheet.machine for sheet in sheets if sheet.machine]
    for line in dict.fromkeys(lines):
        console.print(line, markup=False, highlight=False, soft_wrap=True, style="dim")
