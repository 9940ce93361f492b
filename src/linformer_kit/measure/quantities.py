"""Times, sizes and ratios as people read them."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1.0:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    milliseconds = value * 1000
    return f"{milliseconds:.2f} ms" if milliseconds < 10 else f"{milliseconds:.1f} ms"


def duration(value: float) -> str:
    """A long time, of so many seconds."""
    minutes = value / 60
    if value < 10:
        return seconds(value)
    if minutes < 1:
        return f"{value:.0f} seconds"
    return f"{minutes:.1f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"


def size(value: int | None) -> str:
    """Bytes in units of 1000."""
    if value is None:
        return "-"
    if value >= 1e9:
        return f"{value / 1e9:.2f} GB"
    if value >= 1e5:
        return f"{value / 1e6:.1f} MB"
    return f"{value / 1e3:.1f} kB" if value >= 1000 else count(value, "byte")


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 row", "2,000 rows"."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def of(number: int, total: int, one: str) -> str:
    """So many of all, with the verb: "1 of 2 rows was", "3 of 2,000 rows were"."""
    return f"{number:,} of {count(total, one)} {'was' if number == 1 else 'were'}"


def ratio(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def fraction(times: float) -> str:
    """What is `times` times less, as a part of the whole: 23 gives "1/23", 1.25 "80%"."""
    return f"1/{times:.0f}" if times >= 1.95 else f"{1 / times:.0%}"
