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

from ..artifact import (
    HOLDER,
    LOCK,
    ArtifactFolder,
    check_folder,
    check_replaceable,
    clean_staging,
    difference,
    json_bytes,
    publish,
    remove_empty_folders,
    remove_written,
    staged_name,
    staging_folder,
    write_atomic,
)
from ..errors import UserError, user_input
from ..runs.folder import RunFolder
from ..runs.models import clean_checkpoints
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
class ConversionFolder(ArtifactFolder):
    """The files of a conversion."""

    kind = KIND
    title = "a conversion's folder"
    remedy = ELSEWHERE

    path: Path

    @property
    def run(self) -> RunFolder:
        """Log and checkpoints of the training."""
        return RunFolder(self.path / RUN)

    @property
    def marker_file(self) -> Path:
        return self.run.path / MARKER

    @property
    def staging(self) -> Path:
        return staging_folder(self.path / "model")

    def check_for(self, options: dict[str, Any]) -> dict[str, Any] | None:
        """The record of a finished conversion with these options; None if there is work to do.

        A folder with anything else is refused. Writes nothing.
        """
        check_folder(
            self.path,
            self.title,
            ours=lambda path: self.has_marker or (path / RECORD).exists(),
            started=lambda path: path == self.staging or (path.name == RUN and _only_started(path)),
            remedy=self.remedy,
        )
        if (self.path / RECORD).exists():
            record = _read(self.path / RECORD)
            self._check_options(record.get("options"), options)
            with user_input(f"cannot read {self.path / RECORD}", remedy=ELSEWHERE):
                length = record["settings"]["max_length"]
                if not isinstance(length, int) or not all(
                    isinstance(record[name], str) for name in ("how", "result", "source")
                ):
                    raise TypeError("it is not the record of a conversion")
            return record
        if (marker := self.marker()) is not None:
            self._check_options(marker.get("options"), options)
        self.check_writable()
        return None

    def open(self, options: dict[str, Any], digest: dict[str, str]) -> None:
        """Write the marker, or compare with it; under the lock."""
        known = self.marker()
        if known is None:
            marker = {"kind": KIND, "options": options, "digest": digest}
            write_atomic(self.marker_file, json_bytes(marker))
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
        clean_checkpoints(self.run.checkpoints)

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
        write_atomic(self.run.path / START, json_bytes(found))

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
            check_replaceable(
                self.path / name,
                lambda path: path.relative_to(self.path).as_posix() in ours,
                remedy="Move it elsewhere and give the same command again.",
            )
        with user_input(f"cannot write to {self.path}"):
            if self.run.path.is_dir():
                write_atomic(written, json_bytes({"files": names}))
            for name, file in zip(names, files, strict=True):
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                publish(file, self.path / name)
            shutil.rmtree(self.staging, ignore_errors=True)
        self.write_record(record)

    def write_record(self, record: dict[str, Any]) -> None:
        write_atomic(self.path / RECORD, json_bytes(record))

    def remove_checkpoints(self) -> None:
        """They are three times as large as the model, and no longer needed."""
        for path in self.run.checkpoint_folders():
            remove_written(path)
        if self.run.checkpoints.is_dir():
            remove_empty_folders(self.run.checkpoints)

    def _check_options(self, there: Any, here: dict[str, Any]) -> None:
        if found := difference(there if isinstance(there, dict) else {}, here):
            raise UserError(
                f"{self.path} holds a conversion with other options: {found}. {ELSEWHERE}"
            )


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
