"""The model to convert: re-homed as a Linformer where that is possible, else swapped in place."""

from __future__ import annotations

import copy
import shutil
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..artifact import hashed
from ..errors import UserError, user_input
from ..models.text_input import longest
from .candidates import attentions
from .families import FAMILIES
from .in_place import linformerize, linformerized
from .linformerized_folder import save_linformerized
from .rehome import convert
from .teacher import load_config, load_teacher, load_tokenizer, load_weights, save_model

if TYPE_CHECKING:
    from torch import nn

PROCESSORS = ("preprocessor_config.json", "processor_config.json", "feature_extractor_config.json")


@dataclass(frozen=True)
class Settings:
    """What is exchanged for the attention of each layer."""

    max_length: int
    k: int | list[int]
    window: int
    global_tokens: int
    projection: str
    full_layers: list[int]
    positions: str


@dataclass(frozen=True)
class Source:
    """A pretrained model; `tokenizer` is None if it has none."""

    name: str
    teacher: Any
    tokenizer: Any
    longest: int | None  # how many positions it reads; None if it does not tell
    told: tuple[str, ...] = ()  # what has to be said about loading it

    @property
    def layers(self) -> int:
        """How many attention layers can be exchanged."""
        raise NotImplementedError

    @property
    def reads_text(self) -> bool:
        return self.tokenizer is not None

    @property
    def masked_lm(self) -> bool:
        """Whether it predicts masked tokens."""
        named = type(self.teacher).__name__.endswith("ForMaskedLM")
        return named and getattr(self.tokenizer, "mask_token_id", None) is not None

    def build(self, settings: Settings) -> tuple[nn.Module, list[str]]:
        """The student, and what has to be said about it."""
        raise NotImplementedError

    def save(self, student: nn.Module, folder: Path) -> None:
        raise NotImplementedError

    def digest(self) -> str:
        """Of the teacher's weights."""
        found = hashed()
        for name, tensor in sorted(self.teacher.state_dict().items()):
            found.update(f"{name} {tuple(tensor.shape)} ".encode())
            found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return found.hexdigest()


class Rehomed(Source):
    """A model whose weights become those of a Linformer class."""

    how = "re-homed"

    @property
    def layers(self) -> int:
        return int(self.teacher.config.num_hidden_layers)

    def build(self, settings: Settings) -> tuple[nn.Module, list[str]]:
        with (
            warnings.catch_warnings(record=True) as told,
            user_input(f"cannot convert {self.name}"),
        ):
            warnings.simplefilter("always", UserWarning)
            student = convert(
                self.teacher,
                max_length=settings.max_length,
                k=settings.k,
                window=settings.window,
                global_tokens=settings.global_tokens,
                projection=settings.projection,
                full_layers=settings.full_layers,
                positions=settings.positions,  # type: ignore[arg-type]
            )
        return student.eval(), [*self.told, *(str(warning.message) for warning in told)]

    def save(self, student: nn.Module, folder: Path) -> None:
        save_model(student, self.tokenizer, folder, source=self.name)


class InPlace(Source):
    """A model whose attention is swapped inside it; see `linformerize`."""

    how = "in place"

    @property
    def layers(self) -> int:
        return sum(each.why_not is None for each in attentions(self.teacher))

    @property
    def reads_text(self) -> bool:
        """Whether rows of tokens are all that it needs."""
        return (
            self.tokenizer is not None
            and self.teacher.main_input_name == "input_ids"
            and not self.teacher.config.is_encoder_decoder
        )

    def build(self, settings: Settings) -> tuple[nn.Module, list[str]]:
        text = self.teacher.main_input_name == "input_ids"
        if text and self.longest is not None and settings.max_length > self.longest:
            raise UserError(
                f"{type(self.teacher).__name__} is converted in place and keeps its positions: "
                f"--max-length must be at most {self.longest}, got {settings.max_length}."
            )
        with user_input(f"cannot convert {self.name}"):
            student = linformerize(
                copy.deepcopy(self.teacher),
                max_length=settings.max_length,
                k=settings.k,
                window=settings.window,
                global_tokens=settings.global_tokens,
                projection=settings.projection,  # type: ignore[arg-type]
                keep_full=settings.full_layers,
            )
        student.requires_grad_(True)
        found = linformerized(student)
        left = sorted({record.why for record in found if not record.swapped})
        count = sum(record.swapped for record in found)
        said = f"{count} of {len(found)} attention modules swapped in place"
        if left:
            said += f"; left alone: {', '.join(left)}"
        return student, [*self.told, f"{said}. Load the folder with load_linformerized."]

    def save(self, student: nn.Module, folder: Path) -> None:
        save_linformerized(student, folder)
        with user_input(f"cannot write to {folder}"):
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(folder)
            for name in PROCESSORS:
                if (Path(self.name) / name).is_file():
                    shutil.copyfile(Path(self.name) / name, folder / name)


def load_source(name: str) -> Rehomed | InPlace:
    """A pretrained model of a folder or of the hub, and how it is converted."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        source = _load_source(name)
    return replace(source, told=tuple(str(warning.message) for warning in caught))


def _load_source(name: str) -> Rehomed | InPlace:
    import transformers

    config = load_config(name)
    if config.model_type in FAMILIES:
        teacher, tokenizer = load_teacher(name, config)
        return Rehomed(name, teacher, tokenizer, longest(config))
    kind: Any = transformers.AutoModel
    for architecture in config.architectures or []:
        named = getattr(transformers, architecture, None)
        kind = named if hasattr(named, "from_pretrained") else kind
    model = load_weights(kind, name)
    source = InPlace(name, model, load_tokenizer(name, model), longest(config))
    if not source.layers:
        with user_input(f"{name} cannot be converted"):
            linformerize(model, max_length=1, k=1)  # says what was found
    return source
