"""Sheets: one table, shown in several ways."""

from __future__ import annotations

import pytest
from rich.console import Console

from linformer_kit.evidence.figures.sheet import Entry, Sheet, entries

SHEET = Sheet(
    title="Times",
    columns=("n", "seconds"),
    rows=(entries("512", Entry("0.1 [bold]", "good")), entries("a|b", "2")),
)


def test_markdown_keeps_every_entry_and_escapes_bars():
    assert SHEET.as_markdown().splitlines() == [
        "| n | seconds |",
        "| --- | ---: |",
        "| 512 | 0.1 [bold] |",
        "| a\\|b | 2 |",
    ]


def test_a_terminal_shows_what_looks_like_markup_as_it_is():
    console = Console(width=60)
    with console.capture() as capture:
        console.print(SHEET.as_rich())
    assert "0.1 [bold]" in capture.get()


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a row has 1 entries, the columns are 2"):
        Sheet(title="Times", columns=("a", "b"), rows=(entries("1"),))


def test_text_begins_at_the_left():
    rows = (entries("x", "what it does", "1"),)
    sheet = Sheet(title="t", columns=("a", "b", "c"), rows=rows, keys=2)
    assert sheet.as_markdown().splitlines()[1] == "| --- | --- | ---: |"
