"""The provenance of records in one line, shown with every figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Record


def provenance(records: Sequence[Record]) -> str:
    """Machine, threads, versions, seed and commit. Distinct values are listed."""
    machines = [record["machine"] for record in records if record.get("machine")]
    if not machines:
        return "no machine recorded"

    def all_of(name: str, shorten: int | None = None) -> str:
        found = dict.fromkeys(str(machine.get(name)) for machine in machines)
        return ", ".join(_short(value, shorten) for value in found)

    def counted(name: str, one: str) -> str:
        found = all_of(name)
        return f"{found} {one if found == '1' else f'{one}s'}"

    return (
        f"{all_of('cpu')}, {counted('cores', 'core')}, {counted('threads', 'thread')}, Python "
        f"{all_of('python')}, torch {all_of('torch')}, seed {all_of('seed')}, commit "
        f"{all_of('commit', 7)}"
    )


def _short(value: str, length: int | None) -> str:
    if length is None or value == "None":
        return value
    dirty = "-dirty" if value.endswith("-dirty") else ""
    return value[:length] + dirty
