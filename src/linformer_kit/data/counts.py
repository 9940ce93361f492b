"""What a part of the data holds, and how much of it no model gets to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..measure import quantities

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass
class Counts:
    """The counts of one part."""

    documents: int = 0
    rows: int = 0
    tokens: int = 0  # all of them, read or not; positions, where the inputs are features
    bytes: int = 0
    words: int = 0
    empty: int = 0  # records without text, left out
    longer: int = 0  # documents longer than max_length
    longest: int = 0  # tokens of the longest document
    chunked: int = 0  # documents whose overlapping pieces are rows of their own
    cut_rows: int = 0  # rows that were cut at max_length
    cut_tokens: int = 0  # tokens that are in no row
    unknown: int = 0  # tokens that the tokenizer does not know
    spans: int = 0
    unread_spans: int = 0  # in the tokens that are in no row
    lost_spans: int = 0  # no token has their label: several spans in one token
    moved_spans: int = 0  # they begin or end inside a token or a word
    left_out: int = 0  # files of a folder that are not read, because of how their names end
    first_left_out: str = ""


def unread(part: str, counts: Mapping[str, Any], max_length: int) -> str | None:
    """One sentence about what was cut from a part, or None. `counts` is as stored in meta.json."""
    rows = counts.get("cut_rows", counts.get("truncated", 0))
    tokens, total = counts.get("cut_tokens", 0), counts.get("tokens", 0)
    said = []
    if rows:
        of = counts.get("rows", rows)
        longest = counts.get("longest", 0)
        known = f" (the longest has {longest:,} tokens)" if longest > max_length else ""
        cut = quantities.of(rows, of, "row")
        said.append(f"{cut} cut at data.max_length = {max_length}{known}")
    if tokens:
        said.append(f"{share(tokens, total)} of the tokens ({tokens:,} of {total:,}) were not read")
    return f"{part}: {'; '.join(said)}." if said else None


def chunked(part: str, counts: Mapping[str, Any], max_length: int) -> str | None:
    """One sentence about documents whose pieces are rows of their own, or None."""
    if not counts.get("chunked", 0):
        return None
    return (
        f"{part}: {counts['chunked']:,} of {counts['documents']:,} documents are longer than "
        f"data.max_length = {max_length} and are read in overlapping pieces, {counts['rows']:,} "
        "rows in all."
    )


def notices(part: str, counts: Mapping[str, Any], max_length: int) -> dict[str, str]:
    """What every command that reads data says about a part: a sentence by the name of an event."""
    said = {
        "left out": left_out(part, counts),
        "unread": unread(part, counts, max_length),
        "chunked": chunked(part, counts, max_length),
        "unknown tokens": unknown(part, counts),
        "inexact spans": inexact(part, counts),
    }
    return {event: text for event, text in said.items() if text is not None}


def left_out(part: str, counts: Mapping[str, Any]) -> str | None:
    """One sentence about files of a folder that are not read, or None."""
    files = counts.get("left_out", 0)
    if not files:
        return None
    more = f" and {files - 1:,} more" if files > 1 else ""
    return (
        f"{part}: {quantities.count(files, 'file')} of data.{part} not read, because "
        f"of how the name ends: {counts['first_left_out']!r}{more}. Name files to read as .txt."
    )


def unknown(part: str, counts: Mapping[str, Any]) -> str | None:
    """One sentence about tokens that the tokenizer does not know, or None."""
    tokens, total = counts.get("unknown", 0), counts.get("tokens", 0)
    if not tokens:
        return None
    return (
        f"{part}: {share(tokens, total)} of the tokens ({tokens:,} of {total:,}) are unknown to "
        "the tokenizer and read as its unknown token."
    )


def inexact(part: str, counts: Mapping[str, Any]) -> str | None:
    """One sentence about spans that tokens cannot show exactly, or None."""
    total = counts.get("spans", 0)
    cut, lost, moved = (counts.get(f"{name}_spans", 0) for name in ("unread", "lost", "moved"))
    said = []
    if cut:
        said.append(f"{cut:,} of {total:,} spans are in text that was not read and count as missed")
    if moved:
        said.append(
            f"{moved:,} of {total:,} spans begin or end inside a token or a word and cannot be "
            "found exactly"
        )
    if lost:
        said.append(f"{lost:,} of {total:,} spans share their token with another and are lost")
    return f"{part}: {'; '.join(said)}." if said else None


def share(count: int, total: int) -> str:
    """A percentage that says neither 0 of something nor 100 of not all."""
    percent = 100 * count / max(total, 1)
    if 0 < percent < 0.1:
        return "less than 0.1 %"
    if 99.9 < percent < 100:
        return "more than 99.9 %"
    return f"{percent:.1f} %"
