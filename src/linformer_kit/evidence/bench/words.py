"""The results of `bench grid` and `bench growth` in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...measure import quantities
from .results import FULL, GRID, GROWTH, KIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...measure.records import Record


class Saving(NamedTuple):
    """The savings at the longest lengths that were measured, as ratios."""

    length: int
    k: int
    time: float  # against SDPA
    memory: float | None  # against SDPA
    old_length: int | None
    old: float | None  # time, against the materialised form


def best_saving(records: Sequence[Record]) -> Saving | None:
    """With k = 256 if it was measured: the paper's choice for long inputs."""
    found = [r for r in GRID.select(records) if r["model"] == "linformer" and r["time_sdpa"]]
    if not found:
        return None
    longest = max(record["length"] for record in found)
    at = {record["k"]: record for record in found if record["length"] == longest}
    k = 256 if 256 in at else min(at)
    old = [r for r in found if r["k"] == k and r["time_materialised"]]
    last: dict[str, Any] = max(old, key=lambda record: record["length"], default={})
    return Saving(
        length=longest,
        k=k,
        time=at[k]["time_sdpa"],
        memory=at[k]["memory_sdpa"],
        old_length=last.get("length"),
        old=last.get("time_materialised"),
    )


def grid_in_words(records: Sequence[Record]) -> str | None:
    """The answer at the longest length where both were measured."""
    best = best_saving(records)
    if best is None:
        return None
    words = (
        f"On this machine, a Linformer layer with k = {best.k} reads {best.length:,} tokens "
        f"{best.time:.1f} times faster than today's fused attention"
    )
    if best.memory is not None:
        words += (
            f" in {1 / best.memory:.0%} of its memory"
            if best.memory >= 1
            else f", in {1 / best.memory:.2f} times its memory"
        )
    if best.old is not None:
        words += (
            f"; against the materialised attention of 2020 it is {best.old:.1f} times faster at "
            f"{best.old_length:,} tokens"
        )
    return f"{words}."


def growth_in_words(records: Sequence[Record]) -> str | None:
    """The longest length that was measured; with full attention if it was measured too."""
    found = [record for record in GROWTH.select(records) if record.get("best") is not None]
    if not found:
        return None
    ours = sorted((r for r in found if r["model"] == KIT), key=lambda record: record["length"])
    compared = [record for record in ours if record["times_faster"]]
    if compared and any(record["model"] == FULL for record in found):
        last = compared[-1]
        words = (
            f"At {last['length']:,} tokens Linformer takes "
            f"{quantities.fraction(last['times_faster'])} of the time"
        )
        if last["times_memory"] is not None:
            words += f" and {quantities.fraction(last['times_memory'])} of the memory"
        return f"{words} of full attention."
    if not ours:
        return None
    last = ours[-1]
    words = (
        f"Linformer reads {last['length']:,} tokens in {quantities.seconds(last['best'])}, "
        f"{last['tokens_per_second']:,.0f} a second"
    )
    if last.get("memory_work") is not None:
        words += (
            f", in {quantities.size(last['memory_work'])} of memory "
            f"({quantities.size(last['memory_total'])} with its weights and the input)"
        )
    return f"{words}."
