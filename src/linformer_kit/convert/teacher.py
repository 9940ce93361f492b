"""Load a pretrained model, and save what it was converted to."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UserError, user_input
from ..hub import require_hub
from ..models.load import check_weights, quiet
from ..models.sentence_files import ABOUT, MODULES, POOLING, write_limits
from ..outputs import write_atomic
from .families import FAMILIES
from .family import expand
from .rehome import family_of, first_of, head_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

RECORD = "conversion.json"
REMEDY = "Give a folder with config.json and its weights, or a name of the Hugging Face hub."


def load_teacher(name: str) -> tuple[PreTrainedModel, Any]:
    """A pretrained model with the head it was saved with, and its tokenizer (None without one).

    Safetensors files are preferred; a pickled file is read by `weights_only=True` alone, which runs
    no code. Of a class that transformers does not have, the tensors tell the head. Tensors that are
    not used are named in a warning.
    """
    config = load_config(name)
    if config.model_type not in FAMILIES:
        raise UserError(
            f"{name} cannot be converted: convert knows {', '.join(FAMILIES)}, and this has "
            f"model_type {config.model_type!r}. linformer_kit.convert.linformerize exchanges the "
            "attention inside other models."
        )
    kind = _class_of(config)
    model, unused = _load(kind or _automatic(), name)
    if kind is None and unused:
        named = _class_by_tensors(model, unused)
        model, unused = (model, unused) if named is None else _load(named, name)
    _tell_unused(model, unused, name)
    with user_input(f"{name} cannot be converted"):
        head_of(family_of(model), model)
    return model, load_tokenizer(name)


def load_config(name: str) -> Any:
    """The configuration of a pretrained model of a folder or of the hub."""
    import transformers

    require_hub(name, "config.json")
    with user_input(f"{name} is no model that can be loaded", remedy=REMEDY), quiet():
        return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)


def load_weights(kind: Any, name: str) -> Any:
    """A model of the class `kind` in inference mode; unused tensors are named in a warning."""
    model, unused = _load(kind, name)
    _tell_unused(model, unused, name)
    return model


def _load(kind: Any, name: str) -> tuple[Any, list[str]]:
    """A model of the class `kind`, and the names of the tensors that it does not use."""
    with user_input(f"cannot load the model {name}", remedy=REMEDY), quiet():
        model, info = kind.from_pretrained(
            name,
            dtype=torch.float32,
            trust_remote_code=False,
            weights_only=True,
            output_loading_info=True,
        )
    check_weights(model, info, name, optional=("pooler",))
    return model.eval(), sorted(info["unexpected_keys"])


def _tell_unused(model: nn.Module, unused: list[str], name: str) -> None:
    if unused:
        warnings.warn(
            f"{len(unused)} tensors of {name}, loaded as {type(model).__name__}, are not used: "
            f"{first_of(unused)}.",
            stacklevel=3,
        )


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model; None without one."""
    import transformers

    if Path(name).is_dir() and not _has_tokenizer(Path(name)):
        return None
    with user_input(f"cannot load the tokenizer of {name}"), quiet():
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def _automatic() -> Any:
    import transformers

    return transformers.AutoModel


def _class_of(config: Any) -> Any | None:
    """The class that a model was saved with, if it is known and can be converted."""
    import transformers

    heads = FAMILIES[config.model_type].heads
    for name in config.architectures or []:
        if name.endswith(tuple(heads)) and hasattr(transformers, name):
            return getattr(transformers, name)
    return None


def _class_by_tensors(model: PreTrainedModel, names: list[str]) -> Any | None:
    """The one class whose head these tensors make up; None if none does, or several."""
    import transformers

    family = family_of(model)
    found = []
    for end, head in family.heads.items():
        table = {ours: theirs for ours, theirs in head.tensors.items() if "lm_head" not in ours}
        own = [each for each in expand(table, 1).values() if not each.startswith(family.prefix)]
        if own and set(own) <= set(names):
            found.append(type(model).__name__.removesuffix("Model") + end)
    return getattr(transformers, found[0], None) if len(found) == 1 else None


def _has_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
    return any((folder / name).is_file() for name in names)


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that has something in it."""
    with user_input(f"cannot write to {folder}"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is not empty: it is left alone. Name another with --out.")


def save_converted(
    student: nn.Module, tokenizer: Any, folder: Path, *, source: str, record: dict[str, Any]
) -> None:
    """The model, its tokenizer for the new length, and how the conversion was made."""
    save_model(student, tokenizer, folder, source=source)
    write_atomic(folder / RECORD, json.dumps(record, indent=1) + "\n")


def save_model(student: nn.Module, tokenizer: Any, folder: Path, *, source: str) -> None:
    """The model, and its tokenizer for the new length."""
    model: Any = student
    with user_input(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.model_max_length = model.config.max_position_embeddings
            tokenizer.save_pretrained(folder)
        _copy_sentence_files(Path(source), folder, model.config.max_position_embeddings)


def _copy_sentence_files(source: Path, folder: Path, length: int) -> None:
    """Where the source is a sentence-transformers folder, the result is one too, of its length."""
    if not (source / MODULES).is_file():
        return
    for name in (MODULES, POOLING, ABOUT):
        if (source / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)
    write_limits(folder, length)
