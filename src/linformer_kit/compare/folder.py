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

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..measure.records import read_records
from ..outputs import STAGING, write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MARKER = "comparison.json"
KIND = "linformer-kit comparison"
README = "README.md"
RECORDS = "records.jsonl"
RUNS_ARE_KEPT = "The runs are kept; make room and give the same command again, without --overwrite."


@dataclass(frozen=True)
class ComparisonFolder:
    """What is in the folder, and what may be written there."""

    path: Path

    def check(self, names: Iterable[str]) -> None:
        """Refuse a folder that is not a comparison's, and files that are not. Writes nothing."""
        if not os.path.lexists(self.path):
            return
        if not self.path.is_dir():
            raise UserError(f"{self.path} is not a folder. Name another with --out.")
        names_inside = sorted(path.name for path in self.path.iterdir())
        inside = [name for name in names_inside if not name.startswith(STAGING)]
        digests = self._digests()
        if digests is None and inside:
            raise UserError(
                f"{self.path} exists and is not a comparison's folder: it holds {inside[0]}"
                f"{' and more' if len(inside) > 1 else ''}. It is left alone. "
                "Name another folder with --out."
            )
        for name in names:
            path = self.path / name
            if os.path.lexists(path) and _digest_of(path) not in (digests or ()):
                raise UserError(
                    f"{path} was not written by a comparison, or was changed since. It is left "
                    "alone: move it elsewhere, or name another folder with --out."
                )

    def open(self) -> None:
        """Make the folder and its marker, after `check`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror or error}.") from error
        self._mark(self._digests() or set())

    def write(self, files: dict[str, bytes]) -> None:
        """Write or replace these files. A kill leaves each as it was or as it will be."""
        self.check(files)
        # First the marker: whatever is replaced when a kill comes is known to be ours.
        self._mark((self._digests() or set()) | {_digest(data) for data in files.values()})
        for name, data in files.items():
            write_atomic(self.path / name, data, remedy=RUNS_ARE_KEPT)

    def records(self) -> list[dict[str, Any]]:
        """What an earlier comparison left here."""
        path = self.path / RECORDS
        return read_records(path).records if path.is_file() else []

    def _digests(self) -> set[str] | None:
        """Of the files that comparisons wrote here; None if this is not a comparison's folder."""
        try:
            marker = json.loads((self.path / MARKER).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(marker, dict) or marker.get("kind") != KIND:
            return None
        written = marker.get("written")
        return {str(digest) for digest in written} if isinstance(written, list) else set()

    def _mark(self, digests: set[str]) -> None:
        marker = {"kind": KIND, "written": sorted(digests)}
        content = json.dumps(marker, indent=1) + "\n"
        write_atomic(self.path / MARKER, content, remedy=RUNS_ARE_KEPT)


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _digest_of(path: Path) -> str | None:
    """None for anything but a regular file: a link's target is not ours."""
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return _digest(path.read_bytes())
    except OSError:
        return None
