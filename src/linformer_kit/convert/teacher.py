"""Load a pretrained model, and save what it was converted to."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..artifact import check_folder, follow_umask, json_bytes, write_atomic
from ..errors import UserError, user_input
from ..evidence.analysis.encoders import check_sizes
from ..hub import require_hub
from ..machine_memory import require_memory
from ..models.load import (
    check_types,
    check_weights,
    pickle_refused,
    quiet,
    stored_types,
)
from ..models.sentence_files import ABOUT, MODULES, POOLING, write_limits
from .card import CARD, card
from .families import FAMILIES
from .family import expand
from .rehome import family_of, first_of, head_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

RECORD = "conversion.json"
POOLER = "pooler."  # of a model that is an encoder; a head's begins with the encoder's name
REMEDY = "Give a folder with config.json and its weights, or a name of the Hugging Face hub."


def load_teacher(name: str, config: Any = None) -> tuple[PreTrainedModel, Any]:
    """A pretrained model with the head it was saved with, and its tokenizer (None without one).

    Safetensors files are preferred; a pickled file is read by `weights_only=True` alone, which runs
    no code. Of a class that transformers does not have, the tensors tell the head. Tensors that are
    not used are named in a warning. `config` is that of `load_config`.
    """
    config = config or load_config(name)
    if config.model_type not in FAMILIES:
        raise UserError(
            f"{name} cannot be converted: convert knows {', '.join(FAMILIES)}, and this has "
            f"model_type {config.model_type!r}. linformer_kit.convert.linformerize exchanges the "
            "attention inside other models."
        )
    kind = _class_of(config)
    found = _load(kind or _automatic(), name, config)
    if kind is None and found.unused:
        named = _class_by_tensors(found.model, found.unused)
        found = found if named is None else _load(named, name, config)
    model = found.model
    if found.random_pooler:
        model.pooler = None
    _tell(found, name)
    with user_input(f"{name} cannot be converted"):
        head_of(family_of(model), model)
    if others := _unknown_modules(Path(name)):
        warnings.warn(
            f"{name} has modules of sentence-transformers that are not converted: "
            f"{', '.join(others)}. The result is its encoder alone.",
            stacklevel=2,
        )
    return model, load_tokenizer(name, model)


def load_config(name: str) -> Any:
    """The configuration of a pretrained model of a folder or of the hub.

    Where it names no model_type, which early versions of transformers did not write, the type is
    that of its class, or of the family whose prefix its tensors have.
    """
    import transformers

    require_hub(name, "config.json")
    with user_input(f"{name} is no model that can be loaded", remedy=REMEDY), quiet():
        said, _ = transformers.PreTrainedConfig.get_config_dict(name)
        if not isinstance(said, dict):
            raise TypeError(f"config.json must be a JSON object: got {type(said).__name__}")
        if not said and not (Path(name) / "config.json").is_file() and Path(name).is_dir():
            raise ValueError("it has no config.json")
        names = said.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise TypeError(f"'architectures' must be a list of class names: got {names!r}")
        check_sizes(said, name)
        if said.get("model_type"):
            return transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        kind = _type_by_names(names, name)
        if kind is None:
            raise UserError(
                f"config.json of {name} has no model_type, and neither its architectures nor its "
                'tensors tell which it is. Add an entry such as "model_type": "bert"; convert '
                f"knows {', '.join(FAMILIES)}, and others in place."
            )
        warnings.warn(
            f"config.json of {name} has no model_type: read as that of {kind}, by its names.",
            stacklevel=3,
        )
        return transformers.CONFIG_MAPPING[kind].from_pretrained(name, trust_remote_code=False)


def _type_by_names(architectures: list[str], name: str) -> str | None:
    """The model_type by the classes of a configuration, or by the names of tensors in a folder."""
    import transformers

    for each in architectures:
        kind = getattr(getattr(transformers, each, None), "config_class", None)
        if kind is not None:
            return str(kind.model_type)
    if Path(name).is_dir():
        tensors = stored_types(Path(name))
        for kind, family in FAMILIES.items():
            if any(each.startswith(family.prefix) for each in tensors):
                return kind
    return None


def load_weights(kind: Any, name: str) -> Any:
    """A model of the class `kind` in inference mode; unused tensors are named in a warning."""
    found = _load(kind, name)
    _tell(found, name)
    return found.model


class Loaded(NamedTuple):
    """A model, the names of the tensors that it does not use, and whether its pooler had none."""

    model: Any
    unused: list[str]
    random_pooler: bool


def _load(kind: Any, name: str, config: Any = None) -> Loaded:
    """A model of the class `kind`. Of an encoder the pooler may be missing, of a head nothing."""
    if Path(name).is_dir() and not getattr(config, "quantization_config", None):
        check_types(stored_types(Path(name)), name)
    given = {} if config is None else {"config": config}
    with user_input(f"cannot load the model {name}", remedy=REMEDY), quiet():
        if config is not None:
            _check_fits(kind, config)
        try:
            model, info = kind.from_pretrained(
                name,
                **given,
                dtype=torch.float32,
                trust_remote_code=False,
                weights_only=True,
                ignore_mismatched_sizes=True,  # reported below, by name
                output_loading_info=True,
            )
        except pickle.UnpicklingError as error:
            raise pickle_refused(name) from error
    check_weights(model, info, name, optional=(POOLER,))
    return Loaded(
        model.eval(),
        sorted(info["unexpected_keys"]),
        any(each.startswith(POOLER) for each in info["missing_keys"]),
    )


def _check_fits(kind: Any, config: Any) -> None:
    """Refuse a configuration whose model is larger than the memory, before it is built."""
    build = getattr(kind, "from_config", None) or kind._from_config
    with torch.device("meta"):
        size = 4 * sum(parameter.numel() for parameter in build(copy.deepcopy(config)).parameters())
    require_memory("the model that its config.json describes", size, remedy="Correct config.json.")


def _tell(found: Loaded, name: str) -> None:
    if found.unused:
        warnings.warn(
            f"{len(found.unused)} tensors of {name}, loaded as {type(found.model).__name__}, are "
            f"not used: {first_of(found.unused)}.",
            stacklevel=3,
        )
    if found.random_pooler:
        what = "the result has none" if found.model.pooler is None else "its output is random"
        warnings.warn(f"{name} has no weights of its pooler: {what}.", stacklevel=3)


def load_tokenizer(name: str, model: Any) -> Any:
    """The tokenizer of a model; None without one. One of another vocabulary is refused."""
    import transformers

    if Path(name).is_dir() and not _has_tokenizer(Path(name)):
        return None
    with user_input(f"cannot load the tokenizer of {name}"), quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            name, config=model.config, trust_remote_code=False
        )
        known = getattr(model.config, "vocab_size", None)
        largest = max(tokenizer.get_vocab().values(), default=-1)
    if isinstance(known, int) and not 0 <= largest < known:
        raise UserError(
            f"the tokenizer of {name} is not that of the model: its tokens go up to {largest:,}, "
            f"and the model knows {known:,}, from 0. Copy the files of the model's own tokenizer, "
            "or remove them: without one the model alone is converted."
        )
    return tokenizer


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
    remedy = "Name another folder with --out."
    check_folder(folder, "empty", ours=lambda _: False, remedy=remedy)


def save_converted(
    student: nn.Module, tokenizer: Any, folder: Path, *, source: str, record: dict[str, Any]
) -> None:
    """The model, its tokenizer for the new length, and how the conversion was made."""
    save_model(student, tokenizer, folder, source=source)
    named = {"result": type(student).__name__, **record}
    write_atomic(folder / CARD, card(folder, named, name=folder.resolve().name))
    write_atomic(folder / RECORD, json_bytes(record))


def save_model(student: nn.Module, tokenizer: Any, folder: Path, *, source: str) -> None:
    """The model, and its tokenizer for the new length."""
    model: Any = student
    with user_input(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            model.save_pretrained(folder)
        follow_umask(folder)
        if tokenizer is not None:
            tokenizer.model_max_length = model.config.max_position_embeddings
            tokenizer.save_pretrained(folder)
        _copy_sentence_files(Path(source), folder, model.config.max_position_embeddings)


def _unknown_modules(source: Path) -> list[str]:
    """Modules of a sentence-transformers folder that are not converted."""
    if not (source / MODULES).is_file():
        return []
    with user_input(f"cannot read {source / MODULES}"):
        said = json.loads((source / MODULES).read_bytes())
        kinds = {str(each["type"]).rpartition(".")[2] for each in said}
    return sorted(kinds - {"Transformer", "Pooling", "Normalize"})


def _copy_sentence_files(source: Path, folder: Path, length: int) -> None:
    """Where the source is a sentence-transformers folder, the result is one too, of its length."""
    if not (source / MODULES).is_file() or _unknown_modules(source):
        return
    for name in (MODULES, POOLING, ABOUT):
        if (source / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)
    write_limits(folder, length)
