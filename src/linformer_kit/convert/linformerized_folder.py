"""Folders of linformerized models: safetensors, a JSON file of what was swapped, and the
configuration of a Hugging Face model.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ..artifact import check_folder, json_bytes, write_atomic
from ..errors import UserError, user_input
from ..models.load import check_weights, quiet
from .candidates import attentions
from .in_place import swap
from .swapped import CHILD, Settings

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

SETTINGS_FILE = "linformerized.json"
WEIGHTS_FILE = "linformerized.safetensors"
FORMAT = 1


def save_linformerized(model: nn.Module, folder: str | Path) -> None:
    """Write a linformerized model to a folder: its weights, what was swapped, and the configuration
    of a Hugging Face model. `load_linformerized` reads it.
    """
    from safetensors.torch import save

    folder = Path(folder)
    swapped = [each for each in attentions(model) if each.swapped]
    if not swapped:
        raise ValueError(
            f"{type(model).__name__} has no swapped attention: call linformerize first."
        )
    packed = [name for name, t in model.state_dict().items() if not isinstance(t, torch.Tensor)]
    if packed:
        raise ValueError(
            f"{type(model).__name__} has quantized layers, which are not tensors to save: got "
            f"{packed[0]}. Save the model before it is quantized."
        )
    with user_input(f"cannot write to {folder}"):
        check_folder(
            folder,
            "a linformerized model's folder",
            ours=lambda path: (path / SETTINGS_FILE).is_file(),
            remedy="Name a new folder.",
        )
        folder.mkdir(parents=True, exist_ok=True)
    library = _in_transformers(type(model))
    if library:
        theirs = cast("PreTrainedModel", model)
        theirs.config.save_pretrained(folder)
        if theirs.can_generate():
            theirs.generation_config.save_pretrained(folder)
    settings = {
        "format": FORMAT,
        "library": "transformers" if library else None,
        "class": type(model).__name__,
        "attention": {each.name: asdict(_settings(each.module)) for each in swapped},
    }
    tensors = {n: t.detach().contiguous() for n, t in _own_tensors(model).items()}
    write_atomic(folder / WEIGHTS_FILE, save(tensors, {"format": "pt"}))
    write_atomic(folder / SETTINGS_FILE, json_bytes(settings))


def load_linformerized(folder: str | Path, *, into: nn.Module | None = None) -> nn.Module:
    """The model that `save_linformerized` wrote.

    A Hugging Face model is built from its configuration by the class of transformers that it had,
    and returned in evaluation mode. For another model pass the same module, newly built, as `into`.
    No code of the folder is run.
    """
    folder = Path(folder)
    kind, settings = _read_settings(folder)
    if into is None:
        into = _build(folder, kind).eval()
    found = {each.name: each for each in attentions(into)}
    for name in settings:
        candidate = found.get(name)
        if candidate is None or candidate.why_not is not None or candidate.swapped:
            why = "it has no such attention"
            if candidate is not None:
                why = candidate.why_not or "it is swapped already"
            raise UserError(
                f"{folder} has swapped attention {name!r}, which {type(into).__name__} cannot take "
                f"over: {why}. Pass a module that is built as the one that was saved."
            )
    swap(into, {found[name]: its for name, its in settings.items()})
    _load_weights(into, folder)
    return into


def longest_swapped(model: nn.Module) -> int:
    """The shortest max_length among the swapped attention modules of a model."""
    return min(_settings(each.module).max_length for each in attentions(model) if each.swapped)


def _settings(module: nn.Module) -> Settings:
    child = getattr(module, CHILD)
    return replace(child.settings, max_length=child.max_length or child.settings.max_length)


def _own_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a model, each tied parameter once."""
    parameters = dict(model.named_parameters())
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - set(parameters)
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if name not in tied}


def _in_transformers(kind: object) -> bool:
    """Whether a class can be built by name from transformers alone."""
    if "transformers" not in sys.modules:
        return False
    import transformers

    return (
        isinstance(kind, type)
        and issubclass(kind, transformers.PreTrainedModel)
        and getattr(transformers, kind.__name__, None) is kind
    )


def _read_settings(folder: Path) -> tuple[str | None, dict[str, Settings]]:
    """The class of transformers, if it is one, and the settings of each swapped attention."""
    file = folder / SETTINGS_FILE
    if not file.is_file():
        raise UserError(f"{folder} is not a linformerized model: it has no {SETTINGS_FILE}.")
    with user_input(f"cannot read {file}", remedy="Save the model again."):
        said = json.loads(file.read_bytes())
        if said["format"] != FORMAT:
            raise UserError(
                f"{file} has format {said['format']!r}, and this version reads {FORMAT}. Update "
                "linformer-kit."
            )
        settings = {name: Settings(**its) for name, its in said["attention"].items()}
        return (str(said["class"]) if said["library"] else None), settings


def _build(folder: Path, kind: str | None) -> nn.Module:
    """The model of a folder, with random weights."""
    if kind is None:
        raise UserError(
            f"{folder} holds the weights of a module that is not a class of transformers: build it "
            "and pass it as into=."
        )
    import transformers

    built: Any = getattr(transformers, kind, None)
    if not _in_transformers(built):
        raise UserError(f"{folder} needs the class {kind}, which this transformers does not have.")
    if not (folder / "config.json").is_file():
        raise UserError(f"cannot build {kind} from {folder}: it has no config.json.")
    with user_input(f"cannot build {kind} from {folder}"), quiet():
        config = built.config_class.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        model: Any = built(config)
        if (folder / "generation_config.json").is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
    return model


def _load_weights(model: nn.Module, folder: Path) -> None:
    """Give a model the tensors of a folder, which must be exactly its own."""
    from safetensors.torch import load_file

    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise UserError(f"{folder} has no {WEIGHTS_FILE}.")
    with user_input(f"cannot read {file}", remedy="Save the model again."):
        saved = load_file(file)
    own = _own_tensors(model)
    fitting = {n: t for n, t in saved.items() if n in own and t.shape == own[n].shape}
    for name, tensor in fitting.items():
        own[name].data = tensor.clone().to(own[name].device)  # aligned, of the dtype saved
    info = {
        "missing_keys": own.keys() - saved.keys(),
        "unexpected_keys": saved.keys() - own.keys(),
        "mismatched_keys": [
            (name, saved[name].shape, own[name].shape)
            for name in sorted(saved.keys() & own.keys() - fitting.keys())
        ],
    }
    check_weights(model, info, file)
