"""The folder of a conversion: a model folder of transformers, and what it takes to resume.

conversion.json    how the model was made, and its scores: the conversion is finished
README.md          the model card; one that the user wrote meanwhile stays
config.json, ...   the model, its tokenizer
distillation/      of a conversion with training
  run.json         the marker: options, and digests of the model and the text
  start.json       what was chosen, and the scores before training
  metrics.jsonl    what was logged
  checkpoints/     until the conversion is finished

The model's files are written to a temporary folder and moved when all are complete, conversion.json
last. Files that this command did not write are never replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..errors import UserError, user_input
from ..outputs import STAGING, staged_name, write_atomic
from ..runs.folder import RunFolder, not_writable
from ..runs.lock import HOLDER, LOCK
from ..runs.manifest import clean_staging, remove_empty_folders, remove_written
from ..runs.models import CHECKPOINT
from .card import CARD
from .source import Settings

if TYPE_CHECKING:
    from pathlib import Path

RECORD = "conversion.json"
RUN = "distillation"
MARKER, START, PUBLISHED = "run.json", "start.json", "published.json"
KIND = "linformer-kit conversion"
ELSEWHERE = "Name another folder with --out."


@dataclass(frozen=True)
class ConversionFolder:
    """The files of a conversion."""

    path: Path

    @property
    def run(self) -> RunFolder:
        """Log and checkpoints of the training."""
        return RunFolder(self.path / RUN)

    @property
    def staging(self) -> Path:
        return self.path / f"{STAGING}-model"

    def check_for(self, options: dict[str, Any]) -> dict[str, Any] | None:
        """The record of a finished conversion with these options; None if there is work to do.

        A folder with anything else is refused. Writes nothing.
        """
        with user_input(f"cannot write to {self.path}"):
            if not self.path.exists():
                self._check_writable()
                return None
            if not self.path.is_dir():
                raise UserError(f"{self.path} is a file. {ELSEWHERE}")
            names = {path.name for path in self.path.iterdir()} - {self.staging.name}
        if RECORD in names:
            record = _read(self.path / RECORD)
            self._check_options(record.get("options"), options)
            with user_input(f"cannot read {self.path / RECORD}", remedy=ELSEWHERE):
                length = record["settings"]["max_length"]
                if not isinstance(length, int) or not all(
                    isinstance(record[name], str) for name in ("how", "result", "source")
                ):
                    raise TypeError("it is not the record of a conversion")
            return record
        marker = _marker(self.run.path)
        if marker is not None:
            self._check_options(marker.get("options"), options)
        elif names - {RUN} or not _only_started(self.run.path):
            raise UserError(f"{self.path} is not empty: it is left alone. {ELSEWHERE}")
        self._check_writable()
        return None

    def open(self, options: dict[str, Any], digest: dict[str, str]) -> None:
        """Write the marker, or compare with it; under the lock."""
        known = _marker(self.run.path)
        if known is None:
            marker = {"kind": KIND, "options": options, "digest": digest}
            write_atomic(self.run.path / MARKER, json.dumps(marker, indent=1) + "\n")
        else:
            there = known.get("digest")
            there = there if isinstance(there, dict) else {}
            changed = [name for name in digest if there.get(name) != digest[name]]
            if changed:
                what = {"model": "the model", "train": "the text", "held_out": "the text"}
                named = " and ".join(dict.fromkeys(what[name] for name in changed))
                raise UserError(
                    f"{named} of {self.path} has changed since the conversion was started, so it "
                    f"cannot be resumed. Restore it. {ELSEWHERE}"
                )
        self.run.checkpoints.mkdir(exist_ok=True)
        shutil.rmtree(self.staging, ignore_errors=True)
        clean_staging(self.run.path, {MARKER, START, PUBLISHED, "metrics.jsonl"})
        staged = (path.name.rpartition(CHECKPOINT) for path in self.run.checkpoints.iterdir())
        clean_staging(
            self.run.checkpoints,
            {f"{CHECKPOINT}{step}" for _, found, step in staged if found and step.isdigit()},
        )

    def start(self) -> dict[str, Any] | None:
        """What was chosen and measured before training, if that is done."""
        file = self.run.path / START
        if not file.is_file():
            return None
        found = _read(file)
        with user_input(f"cannot read {file}", remedy=ELSEWHERE):
            Settings(**found["settings"])
            if not isinstance(found["untrained"], dict):
                raise TypeError("'untrained' must hold scores")
        return found

    def write_start(self, found: dict[str, Any]) -> None:
        write_atomic(self.run.path / START, json.dumps(found, indent=1) + "\n")

    def publish(self, record: dict[str, Any]) -> None:
        """Move the files of `staging` to their places, then write the record."""
        written = self.run.path / PUBLISHED
        ours = set()
        if written.is_file():
            with user_input(f"cannot read {written}", remedy=ELSEWHERE):
                ours = set(_read(written)["files"])
        if os.path.lexists(self.path / CARD) and CARD not in ours:
            (self.staging / CARD).unlink(missing_ok=True)  # the user has written one
        files = sorted(path for path in self.staging.rglob("*") if path.is_file())
        names = [path.relative_to(self.staging).as_posix() for path in files]
        for name in (*names, RECORD):
            if (self.path / name).exists() and name not in ours:
                raise UserError(
                    f"{self.path / name} was not written by this command: it is left alone. Move "
                    "it elsewhere and give the same command again."
                )
        with user_input(f"cannot write to {self.path}"):
            if self.run.path.is_dir():
                write_atomic(written, json.dumps({"files": names}) + "\n")
            for name, file in zip(names, files, strict=True):
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                file.replace(self.path / name)
            shutil.rmtree(self.staging, ignore_errors=True)
        self.write_record(record)

    def write_record(self, record: dict[str, Any]) -> None:
        write_atomic(self.path / RECORD, json.dumps(record, indent=1) + "\n")

    def remove_checkpoints(self) -> None:
        """They are three times as large as the model, and no longer needed."""
        for path in self.run.checkpoint_folders():
            remove_written(path)
        if self.run.checkpoints.is_dir():
            remove_empty_folders(self.run.checkpoints)

    def _check_options(self, there: Any, here: dict[str, Any]) -> None:
        there = there if isinstance(there, dict) else {}
        for name in sorted({*there, *here}):
            if there.get(name) != here.get(name):
                raise UserError(
                    f"{self.path} holds a conversion with other options: {name} is "
                    f"{there.get(name)!r} there and {here.get(name)!r} here. {ELSEWHERE}"
                )

    def _check_writable(self) -> None:
        if (place := not_writable(self.path)) is not None:
            raise UserError(
                f"cannot write to {self.path}: {place} is not writable for this user. {ELSEWHERE}"
            )


def _marker(folder: Path) -> dict[str, Any] | None:
    """What the marker of a conversion says; None without one."""
    try:
        found = json.loads((folder / MARKER).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("kind") == KIND else None


def _only_started(folder: Path) -> bool:
    """Whether a start was killed before it wrote its marker, or nothing was started."""
    if folder.is_symlink() or not folder.is_dir():
        return not folder.exists()
    inside = {path.name for path in folder.iterdir() if staged_name(path) != MARKER}
    return not inside - {LOCK, HOLDER}


def _read(file: Path) -> dict[str, Any]:
    with user_input(f"cannot read {file}", remedy=ELSEWHERE):
        found = json.loads(file.read_bytes())
        if not isinstance(found, dict):
            raise TypeError("it must be a JSON object")
    return cast("dict[str, Any]", found)
