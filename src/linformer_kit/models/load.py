"""Load a model from a local folder, or say in one line why it cannot be loaded.

Only safetensors files are read: a pickled file is refused by name before anything is unpickled. A
model is never completed with random weights, and never returned with weights that are not finite.
"""

from __future__ import annotations

import json
import pickle
import re
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from ..errors import UserError, listed, user_input
from ..measure import quantities

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Model = TypeVar("Model", bound="PreTrainedModel")

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
FLOATS = frozenset({"BF16", "F16", "F32", "F64"})  # as safetensors calls them


def load_pretrained(kind: type[Model], folder: Path) -> Model:
    """The model of class `kind` in a folder that `save_pretrained` wrote."""
    names = architectures(folder)
    if kind.__name__ not in names:
        raise UserError(
            f"{folder} holds {' or '.join(names) or 'a model without a class'}: this needs a "
            f"{kind.__name__}. Name the folder of such a model."
        )
    check_safetensors(folder)
    with user_input(f"cannot load the model {folder}", remedy="Save or train it anew."), quiet():
        loaded: Any = kind.from_pretrained(
            folder,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
        )
    model, info = loaded
    check_weights(model, info, folder)
    return cast("Model", model)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast | None:
    """The tokenizer saved beside a model; None where the inputs are features."""
    from transformers import PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        return None
    with user_input(f"cannot load the tokenizer in {folder}"), quiet():
        return cast(
            "PreTrainedTokenizerFast",
            PreTrainedTokenizerFast.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            ),
        )


def architectures(folder: Path) -> list[str]:
    """The class names in a folder's config.json, which must be there."""
    said = _config_file(folder)
    with user_input(f"{folder / 'config.json'} is not a model's configuration"):
        names = said.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError("'architectures' must be a list of class names")
    return names


def model_type(folder: Path) -> str | None:
    """The kind of model in a folder, by its config.json, which must be there."""
    said = _config_file(folder).get("model_type")
    return said if isinstance(said, str) else None


def _config_file(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not folder.is_dir():
        raise UserError(f"there is no model folder {folder}.")
    if not file.is_file():
        raise UserError(f"{folder} is not a model: it has no config.json.")
    with user_input(f"{file} is not a model's configuration"):
        said = json.loads(file.read_bytes())
        if not isinstance(said, dict):
            raise TypeError(f"it must be a JSON object: got {type(said).__name__}")
    return said


def check_safetensors(folder: Path) -> None:
    """Refuse a folder without safetensors weights, naming pickled ones."""
    found = sorted(folder.glob("*.safetensors"))
    # Libraries say of a file that may not be read that it does not exist, or take it for missing.
    for file in (*found, *sorted(folder.glob("*.json"))):
        with user_input(f"cannot read {file}"):
            file.open("rb").close()
    if found:
        if not _config_file(folder).get("quantization_config"):
            check_types(stored_types(folder), folder)
        return
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled:
        raise UserError(
            f"{folder} holds its weights as {pickled[0]}, a pickle file, which can run code and is "
            "not read. Convert it to model.safetensors with save_pretrained."
        )
    raise UserError(f"{folder} has no model.safetensors.")


def stored_types(folder: Path) -> dict[str, str]:
    """The type of each tensor in the weights of a folder, by name, in the terms of safetensors.

    Empty and unreadable files are refused, and an index that names files outside the folder. Pickle
    files are read if there are no others, by `weights_only=True`, which runs no code.
    """
    from safetensors import safe_open

    types: dict[str, str] = {}
    for file in _weight_files(folder):
        with user_input(f"cannot read {file}"):
            if not file.stat().st_size:
                raise ValueError("it is empty")
            file.open("rb").close()
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as tensors:
                    types |= {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
            else:
                types |= _pickled_types(file)
    return types


def _pickled_types(file: Path) -> dict[str, str]:
    try:
        found = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except pickle.UnpicklingError as error:
        raise pickle_refused(file) from error
    if not isinstance(found, dict) or not all(map(torch.is_tensor, found.values())):
        raise TypeError("it must hold tensors by their names")
    return {
        str(name): f"{'F' if tensor.is_floating_point() else 'I'}{8 * tensor.element_size()}"
        for name, tensor in found.items()
    }


def pickle_refused(where: object) -> UserError:
    return UserError(
        f"{where} holds weights as a pickle file with more than tensors in it, or a damaged one, "
        "which is not read. Get them as model.safetensors."
    )


def _weight_files(folder: Path) -> list[Path]:
    """The files that `from_pretrained` reads weights from."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if not index.is_file():
            continue
        with user_input(f"{index} is not an index of weights"):
            said = json.loads(index.read_bytes())
            named = said.get("weight_map") if isinstance(said, dict) else None
            if not isinstance(named, dict) or not named:
                raise TypeError("'weight_map' must say in which file each tensor is")
            for part in named.values():
                if not isinstance(part, str) or part in ("", "..") or re.search(r"[/\\]", part):
                    raise ValueError(f"a file must lie in the folder itself: got {part!r}")
                if not (folder / part).is_file():
                    raise ValueError(f"there is no file {part}")
        return [folder / part for part in sorted({*named.values()})]
    return []


def check_types(types: dict[str, str], where: object) -> None:
    """Refuse weights that are no floating-point numbers: quantized ones, without their scales."""
    ends = ("weight", "bias")
    wrong = [
        f"{n} ({kind})" for n, kind in types.items() if n.endswith(ends) and kind not in FLOATS
    ]
    if wrong:
        raise UserError(
            f"{where} holds {len(wrong)} weights as integers or in 8 bits, and its config.json "
            f"says no quantization that gives their scales: {listed(wrong)}. Save the model in "
            "float32, float16 or bfloat16."
        )


def check_weights(
    model: torch.nn.Module, info: dict[str, Any], where: object, *, optional: tuple[str, ...] = ()
) -> None:
    """Refuse a model with missing, unused or non-finite weights, naming the tensors.

    `info` is transformers' loading info. Tensors whose name begins with one of `optional` may be
    missing, and with `optional` given the file may hold more than the model uses (other heads).
    """
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(optional))
    if missing:
        raise UserError(
            f"{where} lacks {len(missing)} of the model's tensors: {listed(missing)}. Copy the "
            "model again, or train it anew."
        )
    other_shape = [f"{name} {tuple(there)}" for name, there, _ in info["mismatched_keys"]]
    if other_shape:
        raise UserError(
            f"{where} holds {quantities.count(len(other_shape), 'tensor')} of another shape "
            "than its configuration "
            f"says: {listed(other_shape)}. Its config.json and its weights do not belong together."
        )
    unused = [] if optional else sorted(info["unexpected_keys"])
    if unused:
        raise UserError(
            f"{where} holds {quantities.count(len(unused), 'tensor')} that its "
            "configuration has no use for: "
            f"{listed(unused)}. Its config.json and its weights do not belong together."
        )
    non_finite = [
        name
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all())
    ]
    if non_finite:
        raise UserError(
            f"{where} has {quantities.count(len(non_finite), 'tensor')} with NaN or "
            "infinite values: "
            f"{listed(non_finite)}. Use an earlier checkpoint."
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from printing what our own message says."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
