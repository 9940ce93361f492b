"""A run's folder: everything about it, each file complete or absent.

run.json          the marker of a run, with the digest of its data
config.yaml       the resolved configuration
environment.json  versions, commit, machine, seed
metrics.jsonl     what was logged, a line each
tensorboard/      the same as events
checkpoints/      where training can resume
best/, last/      models and tokenizer, for `from_pretrained`
evaluation.json   the final scores: the run is finished

Nothing is removed from or replaced in a folder without the marker, and in one with it only what a
run wrote: the files above, and the files listed in the manifests of `best/`, `last/` and the
checkpoints. Everything else is the user's.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..artifact import (
    HOLDER,
    LOCK,
    ArtifactFolder,
    clean_staging,
    damage,
    difference,
    foreign_files,
    json_bytes,
    remove_empty_folders,
    remove_written,
    write_atomic,
)
from ..config import load as configs
from ..config import yaml_text
from ..errors import UserError, user_input
from .models import MODELS, checkpoint_folders, clean_checkpoints, model_folder, step_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from ..config.schema import RunConfig

RESUME_HINT = (
    "What was saved before is intact; make room and give the same command again, without "
    "--overwrite, to resume from there."
)
MARKER = "run.json"
KIND = "linformer-kit run"
FILES = (MARKER, "config.yaml", "environment.json", "metrics.jsonl", "evaluation.json")
FOLDERS = (*MODELS, "checkpoints", "tensorboard")
EVENTS = "events.out.tfevents.*"
# Where and how a run is computed, not what: these may change when it is resumed.
MAY_CHANGE = {
    "run", "data.cache", "train.keep", "train.keep_memory", "train.threads", "train.workers",
    "train.sequence_parallel", "train.scratch",
}  # fmt: skip


@dataclass(frozen=True)
class RunFolder(ArtifactFolder):
    """The files of a run."""

    kind = KIND
    title = "a run's folder"
    remedy = "Name another folder with run=..."

    path: Path

    @property
    def marker_file(self) -> Path:
        return self.path / MARKER

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

    @property
    def _has_results(self) -> bool:
        """Whether anything is there that was computed."""
        models = any((self.path / name).exists() for name in MODELS)
        return models or self.metrics_file.exists() or bool(self.checkpoint_folders())

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
        self.check_ours()
        if not self.has_marker:
            return
        for name in FOLDERS:
            path = self.path / name
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                raise UserError(
                    f"{path} is not a folder that a run wrote. Move it elsewhere, or name another "
                    "folder with run=..."
                )
        if overwrite:
            self._check_place(config)
            return
        if not self.config_file.exists() and not self._has_results:
            return  # a start that was killed before it wrote its configuration
        with user_input(f"cannot read {self.config_file}"):
            there = yaml_text.parse(self.config_file.read_text(encoding="utf-8"))
        with suppress(UserError):  # keys that are newer than the run have their defaults there
            there = configs.resolved(configs.check(there, where=str(self.config_file)))
        found = difference(settings_of(there), settings_of(configs.resolved(config)))
        if found:
            raise UserError(
                f"{self.path} holds a run of another configuration: {found}. "
                "Name another folder with run=..., or use --overwrite."
            )

    def open_for(self, config: RunConfig, digest: dict[str, Any], *, overwrite: bool) -> list[Path]:
        """Create the folder, or open it to resume, after `check_for` and under the lock.

        With `overwrite` the files of an earlier run are removed; returned are those that stay
        because a run did not write them.
        """
        left: list[Path] = []
        try:
            if overwrite and self.has_marker:
                left = self._remove_run()
            if self.has_marker:
                self._check_digest(digest)
            else:
                write_atomic(self.marker_file, json_bytes({"kind": KIND, "data": digest}))
            self.checkpoints.mkdir(exist_ok=True)
            if not self.config_file.is_file():
                write_atomic(self.config_file, yaml_text.dump(configs.resolved(config)))
            self._clean()
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}.") from error
        return left

    def same_data(self, digest: dict[str, Any]) -> bool:
        """Whether these are the rows and labels that the run was started with."""
        known = self._digest()
        return all(known.get(name) == digest[name] for name in digest if name != "tokenizer")

    def _digest(self) -> dict[str, Any]:
        with user_input(f"cannot read {self.marker_file}"):
            return dict(json.loads(self.marker_file.read_bytes())["data"])

    def _check_digest(self, digest: dict[str, Any]) -> None:
        known = self._digest()
        changed = [name for name in digest if known.get(name) != digest[name]]
        if changed:
            what = "model of model.from" if changed == ["start"] else "data"
            raise UserError(
                f"the {what} of {self.path} has changed since the run was started "
                f"({', '.join(changed)}), so it cannot be resumed. Restore it, name another "
                "folder with run=..., or train from the start with --overwrite."
            )

    def _check_place(self, config: RunConfig) -> None:
        """Refuse to overwrite in a folder that holds more than a run by its place."""
        here = self.path.resolve()
        places = [("the working directory", Path.cwd()), ("a home folder", Path.home())]
        for part in ("train", "validation", "test"):
            for name in _sources(getattr(config.data, part)):
                known = re.split(r"[*?\[]", name)[0] if not Path(name).exists() else name
                places.append((f"data.{part}", Path(known).expanduser()))
        if config.model.start is not None:
            places.append(("model.from", Path(config.model.start).expanduser()))
        if config.tokenizer.path is not None:
            places.append(("tokenizer.path", Path(config.tokenizer.path).expanduser()))
        for what, place in places:
            inside = place.resolve()
            if inside.exists() and (here == inside or here in inside.parents):
                raise UserError(
                    f"--overwrite is refused in {self.path}: it holds {what} ({place}). Name "
                    "another folder with run=..."
                )

    def _remove_run(self) -> list[Path]:
        """Remove what a run wrote here, the marker last. What is left is returned.

        First goes what says that the run is finished: a kill may leave the rest half removed.
        """
        if not self.evaluation_file.is_symlink():
            self.evaluation_file.unlink(missing_ok=True)
        for name in MODELS:
            remove_written(self.path / name)
        for path in self.checkpoint_folders():
            remove_written(path)
        self._clean()
        tensorboard = self.path / "tensorboard"
        for path in tensorboard.glob(EVENTS):
            if path.is_file() and not path.is_symlink():
                path.unlink()
        for folder in (self.checkpoints, tensorboard):
            if folder.is_dir():
                remove_empty_folders(folder)
        for name in reversed(FILES):
            path = self.path / name
            if path.is_file() and not path.is_symlink():
                path.unlink()
        return [path for path in foreign_files(self.path) if path.name not in (LOCK, HOLDER)]

    def _clean(self) -> None:
        """Remove what a crash left half written."""
        clean_staging(self.path, {*FILES, *MODELS})
        clean_checkpoints(self.checkpoints)

    def model_folder(self, which: str) -> Path:
        """The folder of a model: best, last, or the step of a checkpoint."""
        return model_folder(self.path, which)

    def best_score(self) -> float | None:
        """The validation score of the best model so far."""
        file = self.best / "score.json"
        if not file.is_file():
            return None
        with user_input(f"cannot read {file}", remedy="Remove the folder it is in."):
            return float(json.loads(file.read_bytes())["score"])

    def checkpoint_folders(self) -> list[Path]:
        """The checkpoints that a run wrote, oldest first, damaged or not."""
        return checkpoint_folders(self.path)

    def last_checkpoint(self) -> Path | None:
        """The newest checkpoint. Each was complete when it got its name."""
        found = self.checkpoint_folders()
        return found[-1] if found else None

    def intact_checkpoint(self) -> tuple[Path | None, list[str]]:
        """The newest checkpoint that is undamaged, and what is wrong with newer ones."""
        problems: list[str] = []
        for path in reversed(self.checkpoint_folders()):
            problem = damage(path) or unreadable(path)
            if problem is None:
                return path, problems
            problems.append(f"{path} is damaged: {problem}")
        return None, problems

    def forget_after(self, step: int) -> None:
        """Drop what was logged after this step: it will be logged again."""
        if not self.metrics_file.is_file():
            return
        kept = [json.dumps(line) for line in self.metrics() if line["step"] <= step]
        write_atomic(self.metrics_file, "".join(line + "\n" for line in kept))

    def metrics(self) -> Iterator[dict[str, Any]]:
        """What was logged; a line torn by a crash is left out."""
        if not self.metrics_file.is_file():
            return
        with user_input(f"cannot read {self.metrics_file}"):
            lines = self.metrics_file.read_bytes().splitlines()
        for line in lines:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict) and isinstance(found.get("step"), int):
                yield found

    def evaluation(self) -> dict[str, Any] | None:
        """The final scores of a finished run."""
        if not self.finished:
            return None
        with user_input(
            f"cannot read {self.evaluation_file}",
            remedy="Remove it and give the command of the training again.",
        ):
            found = json.loads(self.evaluation_file.read_bytes())
            if not isinstance(found, dict) or not isinstance(found.get("metrics"), dict):
                raise ValueError("it holds no metrics")
        return cast("dict[str, Any]", found)


def unreadable(checkpoint: Path) -> str | None:
    """Why training cannot resume from a checkpoint, or None. Nothing is unpickled freely."""
    import torch
    from safetensors import safe_open

    try:
        with user_input("trainer_state.json"):
            state = json.loads((checkpoint / "trainer_state.json").read_bytes())
            if state["global_step"] != step_of(checkpoint):
                raise ValueError(f"it is of step {state['global_step']}")
        weights = checkpoint / "model.safetensors"
        if weights.is_file():
            with user_input(weights.name), safe_open(weights, framework="pt") as tensors:
                tensors.keys()
        elif not (checkpoint / "pytorch_model_fsdp.bin").is_file():
            raise UserError(f"{weights.name} is missing")
        optimizer = checkpoint / "optimizer.pt"
        optimizer = optimizer if optimizer.is_file() else checkpoint / "optimizer.bin"
        for path in (optimizer, checkpoint / "scheduler.pt"):
            with user_input(path.name):
                torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UserError as error:
        return str(error)
    return None


def _sources(source: Any) -> Iterable[str]:
    """The paths that a data source names."""
    if source is None:
        return ()
    if isinstance(source, str):
        return (source,)
    return source if isinstance(source, list) else (source.source, source.target)


def settings_of(
    values: Any, without: Container[str] = MAY_CHANGE, place: str = ""
) -> dict[str, Any]:
    """The values of a configuration by the paths of their keys: those that decide what is computed,
    or all but `without`.
    """
    if place in without:
        return {}
    if not isinstance(values, dict):
        return {place: values}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= settings_of(value, without, f"{place}.{name}" if place else str(name))
    return flat
