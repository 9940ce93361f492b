"""Folders that can be served: runs, models of this package, models of sentence-transformers, and
Hugging Face models whose attention was swapped in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..config.schema import RunConfig
from ..convert.linformerized_folder import SETTINGS_FILE, load_linformerized, longest_swapped
from ..data.iob import label_names, types_of
from ..errors import UserError
from ..models.load import architectures, load_tokenizer
from ..models.sentence_files import MODULES
from ..models.text_input import longest
from ..runs.folder import RunFolder
from ..training.build import MODELS

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from ..config.schema import Task
    from ..predict.answers import Source

ONNX = ".onnx"
# Classes of transformers with swapped attention, by how their names end. An embedding model has no
# class of its own there: how its rows become a vector is not said.
SWAPPED: dict[str, Task] = {
    "ForMaskedLM": "mlm",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "tag",
}


@dataclass(frozen=True)
class ModelFolder:
    """A folder that `save_pretrained` wrote, used as a run of its task with default settings."""

    path: Path
    task: Task
    max_length: int

    def config(self) -> RunConfig:
        return RunConfig.model_validate(
            {
                "task": self.task,
                "run": str(self.path),
                "data": {"train": str(self.path), "max_length": self.max_length},
                "model": {"from": str(self.path)},
            }
        )

    def model_folder(self, which: str) -> Path:
        return self.path


class SentenceModel:
    """What the task `embed` asks of a model, answered by the modules of sentence-transformers."""

    def __init__(self, path: Path) -> None:
        from ..search.embedder import Embedder

        self.embedder = Embedder(path)
        self.config: Any = self.embedder.encoder.config
        self.device = self.embedder.model.device

    def __call__(self, **batch: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(embeddings=self.embedder.embed(batch))

    def parameters(self) -> Any:
        return self.embedder.model.parameters()


def source_of(path: Path) -> tuple[Source, Path | None, Any]:
    """What is in a folder or an exported file: where its settings are, the file, a loaded model."""
    onnx = None
    if path.suffix == ONNX and path.is_file():
        onnx, path = path, path.parent
        if not (path / "config.json").is_file() and (path.parent / "config.yaml").is_file():
            path = path.parent
    if (path / "config.yaml").is_file():
        return RunFolder.existing(path), onnx, None
    if (path / SETTINGS_FILE).is_file() and onnx is None:
        source, model = _swapped(path)
        return source, None, model
    names = architectures(path)
    for task, kind in MODELS.items():
        if kind.__name__ in names:
            config: Any = kind.config_class
            length = config.from_pretrained(
                path, trust_remote_code=False, local_files_only=True
            ).max_position_embeddings
            return ModelFolder(path, task, length), onnx, None
    if (path / MODULES).is_file() and onnx is None:
        theirs = SentenceModel(path)
        return ModelFolder(path, "embed", theirs.embedder.longest), None, theirs
    known = ", ".join(kind.__name__ for kind in MODELS.values())
    raise UserError(
        f"{path} holds {' or '.join(names) or 'no model'}: what can be served is a run, one of "
        f"{known}, a folder of sentence-transformers ({MODULES}), or one of save_linformerized "
        f"({SETTINGS_FILE})."
    )


def _swapped(path: Path) -> tuple[ModelFolder, Any]:
    """A folder of `save_linformerized`, with the tokenizer beside it, and its model."""
    tokenizer = load_tokenizer(path)
    if tokenizer is None:
        raise UserError(
            f"{path} has no tokenizer.json, which its model needs. Save the tokenizer of the "
            "original there, with tokenizer.save_pretrained."
        )
    model: Any = load_linformerized(path)
    name = type(model).__name__
    task = next((task for end, task in SWAPPED.items() if name.endswith(end)), None)
    if task is None:
        raise UserError(
            f"{path} holds {name} with swapped attention: of such folders those can be served "
            f"whose class ends in {', '.join(SWAPPED)}."
        )
    if task == "tag":
        labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
        if labels != label_names(types_of(labels)):
            raise UserError(
                f"{path} must have the labels O, then B-TYPE and I-TYPE of each type: got "
                f"{', '.join(labels)[:200]}."
            )
    most = longest_swapped(model)
    positions = longest(model.config)
    return ModelFolder(path, task, most if positions is None else min(most, positions)), model
