"""From a model to ONNX files that give the same: trace, write, run both, compare, and then keep.

A file's metadata say what a runtime has to know, see `files.py`.
"""

from __future__ import annotations

import copy
import errno
import json
import logging
import os
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..artifact import check_replaceable, publish, staging_path
from . import NEEDED, ExportError, require
from .files import METADATA, is_exported
from .graphs import Graph, Tensors, graphs_of, unfolded_context
from .parity import Cost, Difference, cost_of, difference_of
from .rounding import round_weights
from .runtime import CONTEXT, PAST
from .translation import OPSET, translations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOLERANCE = 1e-4  # of the largest output, or of 1 where that is less
ANOTHER = "Name another file."
TRACED = (2, 24)  # the batch and the length that are traced; any other may come later


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written, and how it compares with the model."""

    path: Path
    graph: str
    size: int
    difference: Difference
    int8: Int8File | None = None


@dataclass(frozen=True)
class Int8File:
    """The same graph with weights of 8 bits, and what that costs."""

    path: Path
    size: int
    cost: Cost


def export_onnx(
    model: nn.Module,
    path: str | Path,
    *,
    int8: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[ExportedFile]:
    """Write `path`, and for a model with an encoder and a decoder `<name>.encoder.onnx` beside it.

    Batch and length stay free. Every file is run by onnxruntime at several sizes, with padding, and
    compared with the model; if they differ by more than `TOLERANCE`, nothing is written. With
    `int8` a second file, `<name>.int8.onnx`, has its matrices rounded to 8 bits.

    Files of an earlier export are replaced, each atomically; any other file is refused before the
    work begins.

    The model is left as it is; weights of other types are exported in float32.
    """
    require(*NEEDED)
    path = Path(path)
    model = copy.deepcopy(model).float().eval()
    export = graphs_of(model)
    names = {graph.name: _file_name(path, graph) for graph in export.graphs}
    facts = {"files": names, **export.facts}
    for name in names.values():
        check_target(path.with_name(name))
        if int8:
            check_target(path.with_name(_int8_name(name)))
    written = []
    with _staging(path) as folder, torch.no_grad(), unfolded_context(model):
        for graph in export.graphs:
            say(f"{names[graph.name]}: tracing")
            file = folder / names[graph.name]
            _write(model, graph, file, facts | {"graph": graph.name})
            say(f"{file.name}: comparing with the model")
            difference = difference_of(graph, file)
            if not difference.within(TOLERANCE):
                raise ExportError(
                    f"{file.name} differs from the model by {difference.largest:.1e}, which is "
                    f"more than {TOLERANCE:g} of its outputs: nothing was written."
                )
            rounded = None
            if int8:
                say(f"{file.name}: rounding to 8 bits")
                rounded = _quantised(graph, file, names)
            written.append(
                ExportedFile(path.parent / file.name, graph.name, _size(file), difference, rounded)
            )
        made = sorted(folder.iterdir())
        for file in made:  # once more: the work may have taken long
            check_replaceable(path.parent / file.name, is_exported, remedy=ANOTHER)
        for file in made:
            publish(file, path.parent / file.name)
    return [_in_place(file, path.parent) for file in written]


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before the work; its folder is made."""
    if path.suffix != ".onnx":
        raise ExportError(f"the name of the file must end in .onnx: got {path}.")
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))
    check_replaceable(path, is_exported, remedy=ANOTHER)


def traced_module(model: nn.Module, graph: Graph, names: list[str]) -> nn.Module:
    return _Traced(model, graph, names).eval()


class _Traced(nn.Module):
    """A graph as a module that takes its inputs in order."""

    def __init__(self, model: nn.Module, graph: Graph, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self.graph = graph
        self.names = names

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = dict(zip(self.names, tensors, strict=True))
        return tuple(self.graph.function(inputs).values())


def _write(model: nn.Module, graph: Graph, file: Path, facts: dict[str, Any]) -> None:
    batch, length = TRACED
    length = min(length, graph.longest or length)
    inputs = graph.example(batch, length)
    outputs = list(graph.function(inputs))
    try:
        with quietly():
            program = torch.onnx.export(
                traced_module(model, graph, list(inputs)),
                tuple(inputs.values()),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes={"tensors": tuple(free_axes(graph, inputs).values())},
                input_names=list(inputs),
                output_names=outputs,
                custom_translation_table=translations(),
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise ExportError(f"{type(model).__name__} cannot be traced: {reason}") from error
    assert program is not None
    program.model.metadata_props[METADATA] = json.dumps(facts)
    program.save(file)


def free_axes(graph: Graph, inputs: Tensors) -> dict[str, dict[int, str]]:
    """The axes of each input that may have any size: those that differ in another example."""
    others = graph.example(inputs_batch(inputs) + 1, 1)
    return {
        name: {
            axis: _axis_name(name, axis)
            for axis, size in enumerate(tensor.shape)
            if size != others[name].shape[axis]
        }
        for name, tensor in inputs.items()
    }


def inputs_batch(inputs: Tensors) -> int:
    return next(iter(inputs.values())).shape[0]


def _axis_name(name: str, axis: int) -> str:
    if axis == 0:
        return "batch"
    if name.startswith(PAST + CONTEXT):
        return "rows"
    if name.startswith(PAST):
        return "past"
    return "length" if axis == 1 else f"length_{axis}"


def _quantised(graph: Graph, file: Path, names: dict[str, str]) -> Int8File:
    rounded = file.with_suffix(".int8.onnx")
    with quietly():
        round_weights(file, rounded)
    _tell_files(rounded, {graph: _int8_name(name) for graph, name in names.items()})
    return Int8File(rounded, _size(rounded), cost_of(graph, rounded))


def _tell_files(file: Path, names: dict[str, str]) -> None:
    """The encoder of an int8 step is the int8 encoder."""
    import onnx

    model = onnx.load(file)
    for entry in model.metadata_props:
        if entry.key == METADATA:
            entry.value = json.dumps(json.loads(entry.value) | {"files": names})
    onnx.save(model, file)


def _int8_name(name: str) -> str:
    return str(Path(name).with_suffix(".int8.onnx"))


def _file_name(path: Path, graph: Graph) -> str:
    return path.with_suffix(".encoder.onnx").name if graph.name == "encoder" else path.name


def _size(file: Path) -> int:
    """Of the file, and of the one beside it that holds weights past 2 GB."""
    return sum(part.stat().st_size for part in file.parent.glob(file.name + "*"))


def _in_place(written: ExportedFile, folder: Path) -> ExportedFile:
    rounded = written.int8
    if rounded is None:
        return written
    moved = Int8File(folder / rounded.path.name, rounded.size, rounded.cost)
    return ExportedFile(written.path, written.graph, written.size, written.difference, moved)


@contextmanager
def _staging(path: Path) -> Iterator[Path]:
    """A folder beside the target: what is not finished never has the target's name."""
    check_target(path)
    folder = staging_path(path)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def quietly() -> Iterator[None]:
    """Without what the exporter and the quantiser say of themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
