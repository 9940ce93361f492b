"""Where a model starts from: the folder that `model.from` names. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, user_input

if TYPE_CHECKING:
    from .schema import RunConfig

MODELS_OF_A_RUN = ("best", "last")


def start_folder(name: str) -> Path:
    """The folder with the model: a model folder or a checkpoint itself, or the best of a run."""
    with user_input(f"cannot read model.from: {name}"):
        path = Path(name).expanduser()
        for folder in (path, *(path / which for which in MODELS_OF_A_RUN)):
            if (folder / "config.json").is_file():
                return folder
        found = path.is_dir()
    if not found:
        raise UserError(
            f"model.from must name a folder: got {name}, which does not exist. A model of the hub "
            "is saved to one with save_pretrained or `linformer convert`."
        )
    raise UserError(
        f"model.from: {name} is no model: it has no config.json, and no best or last model of a "
        "run. Name the folder of a run, of a checkpoint, or of a Hugging Face encoder."
    )


def tokenizer_source(config: RunConfig) -> str | None:
    """The tokenizer that is loaded: that of `tokenizer.path`, or the one of `model.from`.

    None if one is trained. A folder that is gone is named as it was given.
    """
    if config.model.start is None:
        return config.tokenizer.path
    try:
        return str(start_folder(config.model.start))
    except UserError:
        return config.model.start
