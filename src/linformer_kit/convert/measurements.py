"""What the page of a conversion needs beside its scores: the spectrum, time and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .choices import spectrum_of
from .conversion import prepare
from .conversion_folder import ConversionFolder
from .cost import measure_cost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .conversion import Conversion


def measured(
    job: Conversion,
    out: Path,
    record: dict[str, Any],
    *,
    timing: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The record with what was missing; it is added to conversion.json."""
    has_spectrum = "spectrum" in record or "spectrum" in record["choices"]
    if has_spectrum and ("cost" in record or not timing):
        return record
    prepared = prepare(job)
    found = dict(record)
    if not has_spectrum and prepared.text is not None:
        rows = prepared.chosen_on or prepared.measured_on
        found["spectrum"] = spectrum_of(prepared.source, rows, seed=job.seed, say=say)
    if timing and "cost" not in found and prepared.source.reads_text:
        length = prepared.settings.max_length
        found["cost"] = measure_cost(
            job.model,
            str(out),
            short=min(length, prepared.source.longest or length),
            longest=length,
            say=say,
        )
    if found != record:
        ConversionFolder(out).write_record(found)
    return found
