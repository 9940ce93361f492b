"""ONNX files: what is read of one before it is run, and which are of `linformer export`.

A file's metadata say under `linformer_kit` (JSON) what a runtime has to know:

| key               | what it says                                                             |
|-------------------|--------------------------------------------------------------------------|
| kind              | encoder, causal or seq2seq                                               |
| graph             | which graph this file holds: model, step or encoder                      |
| files             | the file of each graph, in the same folder                               |
| class             | the class of the model, of a model of linformer_kit.models               |
| longest, reach    | the longest input, and the longest text of a decoder; null for any       |
| state, result     | of a step: shape and type of each tensor of a state, and the output read |
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import reason_of
from . import ExportError, require

if TYPE_CHECKING:
    from collections.abc import Iterator

METADATA = "linformer_kit"
GRAPHS = {"encoder": ("model",), "causal": ("step",), "seq2seq": ("step", "encoder")}  # by kind
REMEDY = "Export the model again."


def read_graph(path: Path) -> Any:
    """The ONNX model in a file, without weights that lie in other files.

    A file that takes weights from outside its own folder is refused.
    """
    require("onnx")
    import onnx

    if not path.is_file():
        raise ExportError(f"there is no file {path}.")
    try:
        model = onnx.load(path, format="protobuf", load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's have no common base with others
        raise ExportError(f"{path} is not an ONNX file: {reason_of(error)}.") from error
    if not model.graph.node:
        raise ExportError(f"{path} is not an ONNX file: it has no graph.")
    folder = path.parent.resolve()
    for location in sorted(set(_external_files(model))):
        file = folder / location
        if not location or not file.resolve().is_relative_to(folder):
            raise ExportError(
                f"{path} takes weights from {location!r}, which is outside its own folder, and is "
                "not read. Put both into one folder and export or save the model again."
            )
        if not file.is_file():
            raise ExportError(f"{path} needs the file {location}, which is not beside it.")
    return model


def facts_of(path: Path, model: Any) -> dict[str, Any]:
    """What the metadata of a file say, checked."""
    about = {entry.key: entry.value for entry in model.metadata_props}.get(METADATA)
    if about is None:
        raise ExportError(f"{path} was not written by `linformer export`.")
    try:
        facts = json.loads(about)
        _check_facts(facts)
    except (ValueError, RecursionError) as error:
        raise ExportError(
            f"the metadata of {path} are damaged: {reason_of(error)}. {REMEDY}"
        ) from (error)
    checked: dict[str, Any] = facts
    return checked


def is_exported(path: Path) -> bool:
    """Whether `linformer export` wrote a file; weights past 2 GB lie beside it in NAME.data."""
    require("onnx")
    import onnx

    file = path.with_suffix("") if path.suffix == ".data" else path
    try:
        model = onnx.load(file, format="protobuf", load_external_data=False)
    except Exception:  # whatever it is, it is not ours
        return False
    return any(entry.key == METADATA for entry in model.metadata_props)


def _external_files(model: Any) -> Iterator[str]:
    """The files that tensors of a model lie in, other than its own."""
    from onnx import TensorProto

    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            places = {entry.key: entry.value for entry in tensor.external_data}
            yield places.get("location", "")


def _tensors(message: Any) -> Iterator[Any]:
    """Every TensorProto inside a protobuf message, wherever it is."""
    from onnx import TensorProto

    waiting = [message]
    while waiting:
        some = waiting.pop()
        if isinstance(some, TensorProto):
            yield some
            continue
        for field, value in some.ListFields():
            if field.type == field.TYPE_MESSAGE:
                waiting.extend([value] if hasattr(value, "ListFields") else value)


def _check_facts(facts: Any) -> None:
    """Raise a ValueError for the first thing that is missing or wrong."""
    if not isinstance(facts, dict):
        raise ValueError(f"they must be a JSON object, not {type(facts).__name__}")
    kind, graph, files = (_key(facts, name) for name in ("kind", "graph", "files"))
    if not isinstance(kind, str) or kind not in GRAPHS:
        raise ValueError(f"'kind' must be one of {', '.join(GRAPHS)}: got {kind!r}")
    if graph not in GRAPHS[kind]:
        raise ValueError(f"'graph' must be one of {', '.join(GRAPHS[kind])}: got {graph!r}")
    for name in GRAPHS[kind]:
        file = files.get(name) if isinstance(files, dict) else None
        if not isinstance(file, str) or file != Path(file).name or file in ("", ".", ".."):
            raise ValueError(
                f"'files' must name the file of {name!r} in the same folder: got {files}"
            )
    numbers = ("longest", "reach", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    for name in numbers:
        value = facts.get(name)
        several = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if not all(each is None or type(each) is int for each in several):
            raise ValueError(f"{name!r} must be a whole number or null: got {value!r}")
    if graph == "step":
        _check_step(facts)


def _check_step(facts: dict[str, Any]) -> None:
    if not isinstance(_key(facts, "result"), str):
        raise ValueError(f"'result' must name an output: got {facts['result']!r}")
    state = _key(facts, "state")
    for name, about in state.items() if isinstance(state, dict) else [("state", None)]:
        shape = about.get("shape") if isinstance(about, dict) else None
        kind = about.get("type") if isinstance(about, dict) else None
        if not isinstance(shape, list) or not all(type(s) is int and s >= 0 for s in shape):
            raise ValueError(f"'state' must have the shape of {name!r}: got {shape!r}")
        if not isinstance(kind, str) or not _is_number_type(kind):
            raise ValueError(f"'state' must have the type of {name!r}: got {kind!r}")


def _is_number_type(name: str) -> bool:
    try:
        return np.dtype(name).kind in "biuf"
    except TypeError:
        return False


def _key(facts: dict[str, Any], name: str) -> Any:
    if name not in facts:
        raise ValueError(f"the key {name!r} is missing")
    return facts[name]
