"""Which folder of a run holds a model: best, last, or a checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..artifact import clean_staging, has_manifest
from ..errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINT = "checkpoint-"
CHECKPOINTS = "checkpoints"
MODELS = ("best", "last")


def model_folder(run: Path, which: str = "best") -> Path:
    """The folder of a model: best, last, or the step of a checkpoint.

    Without a validation part there is no best model; `best` is then the last one.
    """
    step = which.removeprefix(CHECKPOINT)
    if which in MODELS:
        wanted = [run / name for name in MODELS[MODELS.index(which) :]]
    elif step.isdecimal() and len(step) < 19:
        wanted = [run / CHECKPOINTS / f"{CHECKPOINT}{int(step)}"]
    else:
        raise UserError(f"--model must be best, last or the step of a checkpoint: got {which!r}.")
    for path in wanted:
        if path.is_dir():
            return path
    steps = [str(step_of(path)) for path in checkpoint_folders(run)]
    if not steps:
        raise UserError(f"{run} has no {which} model and no checkpoint yet. Train it first.")
    what = f"{which} model yet" if which in MODELS else f"checkpoint of step {which}"
    raise UserError(
        f"{run} has no {what}. It has checkpoints of the steps {', '.join(steps)}: use --model "
        f"{steps[-1]}, or train to the end."
    )


def checkpoint_folders(run: Path) -> list[Path]:
    """The checkpoints that a run wrote, oldest first, damaged or not."""
    found = [
        path
        for path in (run / CHECKPOINTS).glob(f"{CHECKPOINT}*")
        if re.fullmatch(rf"{CHECKPOINT}\d{{1,18}}", path.name) and has_manifest(path)
    ]
    return sorted(found, key=step_of)


def clean_checkpoints(folder: Path) -> None:
    """Remove the checkpoints that a crash left half written."""
    if folder.is_dir():
        staged = (path.name.rpartition(CHECKPOINT) for path in folder.iterdir())
        clean_staging(
            folder, {f"{CHECKPOINT}{n}" for _, found, n in staged if found and n.isdigit()}
        )


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was saved."""
    return int(checkpoint.name.removeprefix(CHECKPOINT))
