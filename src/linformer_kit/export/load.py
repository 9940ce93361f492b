"""A model to export, from the folder of a run or of a model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import ExportError

if TYPE_CHECKING:
    from pathlib import Path


def load_model(folder: Path, *, which: str = "best") -> Any:
    """The model in a folder that `save_pretrained` wrote, or the `best` or `last` one of a run."""
    if (folder / "config.yaml").is_file():
        run = folder
        folder = run / which
        if not folder.is_dir():
            raise ExportError(f"{run} has no {which} model yet. Train it first.")
    file = folder / "config.json"
    if not file.is_file():
        raise ExportError(
            f"{folder} is neither a run nor a model: it has no config.yaml and no config.json."
        )
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        (name,) = said.get("architectures") or [None]
    except (ValueError, AttributeError) as error:
        raise ExportError(f"{file} cannot be read as the configuration of a model.") from error
    try:
        from .. import models
    except ModuleNotFoundError as error:
        raise ExportError(
            f"models in folders need {error.name}: pip install 'linformer-kit[models]'"
        ) from error
    if name not in models.__all__:
        raise ExportError(
            f"what can be exported is a model of linformer_kit.models: {file} names {name}."
        )
    return getattr(models, name).from_pretrained(folder)
