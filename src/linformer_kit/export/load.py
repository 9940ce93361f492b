"""A model to export, from the folder of a run or of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..runs.models import model_folder
from . import ExportError

if TYPE_CHECKING:
    from pathlib import Path


def load_model(folder: Path, *, which: str = "best") -> Any:
    """The model in a folder that `save_pretrained` wrote, or one of a run.

    `which` is best, last or the step of a checkpoint.
    """
    if (folder / "config.yaml").is_file():
        folder = model_folder(folder, which)
    elif which != "best":
        raise ExportError(f"--model {which} names a model of a run: {folder} is not a run.")
    try:
        from .. import models
    except ModuleNotFoundError as error:
        raise ExportError(
            f"models in folders need {error.name}: pip install 'linformer-kit[models]'"
        ) from error
    from ..models.load import architectures, load_pretrained

    names = architectures(folder)
    if len(names) != 1 or names[0] not in models.__all__:
        raise ExportError(
            f"what can be exported is a model of linformer_kit.models: {folder / 'config.json'} "
            f"names {', '.join(names) or 'none'}."
        )
    return load_pretrained(getattr(models, names[0]), folder)
