"""The folder of a comparison: its marker, the runs of its variants, and the files it writes.

comparison.json   the marker, with a digest of every file that comparisons wrote here
README.md         the table, what it says, and the plots
records.jsonl     everything that the table and the plots show
*.png             the plots
VARIANT/          the run of a variant

A comparison writes only into a folder that is new, empty or has the marker. Inside, it replaces
only files that it wrote itself and nobody changed since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..artifact import ArtifactFolder, check_replaceable, digest, json_bytes, write_atomic
from ..measure.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MARKER = "comparison.json"
KIND = "linformer-kit comparison"
README = "README.md"
RECORDS = "records.jsonl"
RUNS_ARE_KEPT = "The runs are kept; make room and give the same command again, without --overwrite."


@dataclass(frozen=True)
class ComparisonFolder(ArtifactFolder):
    """What is in the folder, and what may be written there."""

    kind = KIND
    title = "a comparison's folder"
    remedy = "Name another folder with --out."

    path: Path

    @property
    def marker_file(self) -> Path:
        return self.path / MARKER

    def check(self, names: Iterable[str]) -> None:
        """Refuse a folder that is not a comparison's, and files that are not. Writes nothing."""
        self.check_ours()
        written = self._digests()
        for name in names:
            check_replaceable(
                self.path / name,
                lambda path: digest(path) in written,
                remedy="If it was changed since, move it elsewhere, or name another folder with "
                "--out.",
            )

    def open(self) -> None:
        """Make the folder and its marker, after `check`."""
        self.create()
        self._mark(self._digests())

    def write(self, files: dict[str, bytes]) -> None:
        """Write or replace these files. A kill leaves each as it was or as it will be."""
        self.check(files)
        # First the marker: whatever is replaced when a kill comes is known to be ours.
        self._mark(self._digests() | {digest(data) for data in files.values()})
        for name, data in files.items():
            write_atomic(self.path / name, data, remedy=RUNS_ARE_KEPT)

    def records(self) -> list[dict[str, Any]]:
        """What an earlier comparison left here."""
        path = self.path / RECORDS
        return read_records(path).records if path.is_file() else []

    def _digests(self) -> set[str]:
        """Of the files that comparisons wrote here."""
        written = (self.marker() or {}).get("written")
        return {str(each) for each in written} if isinstance(written, list) else set()

    def _mark(self, digests: set[str]) -> None:
        marker = json_bytes({"kind": KIND, "written": sorted(digests)})
        write_atomic(self.path / MARKER, marker, remedy=RUNS_ARE_KEPT)
