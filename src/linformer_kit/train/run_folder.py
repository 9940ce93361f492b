"""A run's folder: everything about it, each file whole or not there.

config.yaml       the resolved configuration
environment.json  versions, commit, machine, seed
metrics.jsonl     what was logged, a line each
tensorboard/      the same as events
checkpoints/      where training can go on
best/, last/      models and tokenizer, for `from_pretrained`
evaluation.json   the final scores: the run is finished
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ..config import load as configs
from ..config import yaml_text
from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..config.schema import RunConfig

STAGING = ".saving"
GO_ON = (
    "What was saved before is intact; make room and give the same command again to go on from "
    "there."
)
CHECKPOINT = "checkpoint-"
# Where and how a run is computed, not what: these may change when it goes on.
FREE = {
    ("run",), ("data", "cache"), ("train", "keep"), ("train", "keep_memory"), ("train", "threads"),
    ("train", "workers"),
}  # fmt: skip


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def last(self) -> Path:
        return self.path / "last"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluation_file(self) -> Path:
        return self.path / "evaluation.json"

    @property
    def finished(self) -> bool:
        return self.evaluation_file.is_file()

    @classmethod
    def existing(cls, path: Path) -> RunFolder:
        """The folder of a run that was started."""
        folder = cls(path)
        if not folder.config_file.is_file():
            raise UserError(f"{path} is not a run: it has no config.yaml.")
        return folder

    def config(self) -> RunConfig:
        return configs.load(self.config_file)

    def check_for(self, config: RunConfig, *, overwrite: bool) -> None:
        """Refuse a folder that holds anything but a run of this configuration. Writes nothing."""
        if not self.path.exists():
            return
        if not self.config_file.is_file():
            if not self.path.is_dir() or any(self.path.iterdir()):
                raise UserError(
                    f"{self.path} exists and is not a run's folder: it is left alone. "
                    "Name another with run=..."
                )
            return
        if overwrite:
            return
        difference = _difference(
            _flat(yaml_text.parse(self.config_file.read_text(encoding="utf-8"))),
            _flat(configs.resolved(config)),
        )
        if difference:
            raise UserError(
                f"{self.path} holds a run of another configuration: {difference}. "
                "Name another folder with run=..., or use --overwrite."
            )

    def open_for(self, config: RunConfig, *, overwrite: bool) -> None:
        """Make the folder, or go on in it, after `check_for`."""
        try:
            if overwrite and self.config_file.is_file():
                shutil.rmtree(self.path)
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            if not self.config_file.is_file():
                write_whole(self.config_file, yaml_text.dump(configs.resolved(config)))
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}.") from error

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint. Each is complete: it gets its name when it is."""
        found = sorted(self.checkpoints.glob(f"{CHECKPOINT}*"), key=step_of)
        return found[-1] if found else None

    def forget_after(self, step: int) -> None:
        """Drop what was logged after this step: it will be logged again."""
        if not self.metrics_file.is_file():
            return
        kept = [json.dumps(line) for line in self.metrics() if line["step"] <= step]
        write_whole(self.metrics_file, "".join(line + "\n" for line in kept))

    def metrics(self) -> Iterator[dict[str, Any]]:
        """What was logged; a line torn by a crash is left out."""
        if not self.metrics_file.is_file():
            return
        for line in self.metrics_file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue

    def evaluation(self) -> dict[str, Any] | None:
        if not self.finished:
            return None
        return cast("dict[str, Any]", json.loads(self.evaluation_file.read_text(encoding="utf-8")))


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(CHECKPOINT))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is the old one or the new one, whatever happens."""
    staging = path.with_name(f"{STAGING}-{path.name}")
    try:
        with staging.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        staging.replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}. What stood there is intact; make "
            "room, or use another folder, and give the same command again."
        ) from error


def put_whole(staging: Path, final: Path) -> None:
    """Give a finished folder its name. What stood there goes when the new one is in place."""
    for path in [*staging.rglob("*"), staging]:
        _to_disk(path)
    old = final.with_name(f"{STAGING}-old-{final.name}")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    staging.rename(final)
    _to_disk(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove what a crash left half written; put back what it had moved aside."""
    for path in folder.glob(f"{STAGING}-old-*"):
        final = path.with_name(path.name.removeprefix(f"{STAGING}-old-"))
        if not final.exists():
            path.rename(final)
    for path in folder.glob(f"{STAGING}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return  # not every system opens a folder
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _flat(values: Any, place: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(values, dict):
        return {place: values}
    flat: dict[tuple[str, ...], Any] = {}
    for name, value in values.items():
        flat |= _flat(value, (*place, name))
    return flat


def _difference(there: dict[tuple[str, ...], Any], here: dict[tuple[str, ...], Any]) -> str | None:
    for place in sorted({*there, *here}):
        old, new = there.get(place), here.get(place)
        if old != new and place not in FREE:
            return f"{'.'.join(place)} is {old!r} there and {new!r} here"
    return None
