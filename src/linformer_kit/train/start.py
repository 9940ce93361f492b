"""The model that a run starts with: a new one, or what the folder of `model.from` knows.

A weight of the folder is loaded if the model of the task has a tensor of the same name and shape.
The other tensors of the model are new, and the other weights of the folder are not used; the notes
list both.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import set_seed

from .. import models
from ..artifact import digest
from ..config.schema import LABELLED
from ..config.start import start_folder
from ..convert.rehome import convert
from ..convert.teacher import load_teacher
from ..errors import UserError, user_input
from ..measure import quantities
from ..models.extend import extended
from ..models.load import architectures, load_pretrained, model_type
from ..parallel.row_blocks import recompute_in_blocks
from ..training.build import MODELS, build_model, check_memory, set_loss

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ..config.schema import RunConfig, Task
    from ..data.prepare import Prepared

# Keys of the section `model` that may differ from the folder's: no weight depends on them.
KEYS_WITHOUT_WEIGHTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "activation_dropout",
    "classifier_dropout", "dropout_kind", "window", "global_tokens", "plan", "loss_chunk",
    "initializer_range",
)  # fmt: skip
# Kinds of projection without a weight for each of k rows.
PROJECTIONS_OF_ANY_K = ("mean", "max", "full")
CONVERSION = ("k", "window", "global_tokens", "projection", "sharing")  # of another's encoder
USUAL_K = 128  # of a conversion
PREFIX = "linformer."  # of the encoder's or decoder's weights inside a model with a head
CAUSAL: dict[Task, tuple[bool, bool]] = {"clm": (True, False), "translate": (False, True)}


@dataclass(frozen=True)
class Start:
    """A model to train, what is said about it, and what a run that resumes must find again."""

    model: PreTrainedModel
    notes: list[str] = field(default_factory=list)
    digest: dict[str, str] = field(default_factory=dict)


def start_of(
    config: RunConfig, prepared: Prepared, tokenizer: PreTrainedTokenizerFast | None
) -> Start:
    """The model of a configuration; new weights follow from the seed."""
    start = _start_of(config, prepared, tokenizer)
    if config.train.block_rows:
        with user_input(f"train.block_rows = {config.train.block_rows}"):
            recompute_in_blocks(start.model, config.train.block_rows, scratch=config.train.scratch)
    return start


def _start_of(
    config: RunConfig, prepared: Prepared, tokenizer: PreTrainedTokenizerFast | None
) -> Start:
    if config.model.start is None:
        return Start(build_model(config, prepared, tokenizer))
    folder = start_folder(config.model.start)
    notes: list[str] = []
    if model_type(folder) == models.LinformerConfig.model_type:
        source = _own(folder, config, notes)
    else:
        source = _converted(folder, config, notes)
    made = _config(source, folder, config, prepared, tokenizer)
    target = _filled(source, made, folder, config, prepared, notes)
    return Start(target, notes, {"start": _digest(folder)})


def _own(folder: Path, config: RunConfig, notes: list[str]) -> Any:
    """A model of this package, extended to the length of the data if that is longer."""
    name = next((name for name in architectures(folder) if hasattr(models, name)), None)
    if name is None:
        raise UserError(f"model.from: {folder} names no model class of linformer-kit.")
    source: Any = load_pretrained(getattr(models, name), folder)
    before, wanted = source.config.max_position_embeddings, config.data.max_length
    if wanted > before:
        with user_input(f"cannot extend the model of {folder}"):
            source = extended(source, wanted)
        notes.append(
            f"{folder} reads {before:,} tokens: its positions and E are interpolated to "
            f"data.max_length = {wanted:,}."
        )
    return source


def _converted(folder: Path, config: RunConfig, notes: list[str]) -> Any:
    """An encoder of transformers as a Linformer."""
    teacher, _ = load_teacher(str(folder))
    given = config.model.options
    length = config.data.max_length
    options = {"k": min(USUAL_K, length)} | {
        name: given[name] for name in (*CONVERSION, *KEYS_WITHOUT_WEIGHTS) if name in given
    }
    with (
        warnings.catch_warnings(record=True) as told,
        user_input(f"cannot convert the model of model.from: {folder}"),
    ):
        warnings.simplefilter("always", UserWarning)
        source = convert(teacher, max_length=length, **options)
    notes += [str(warning.message) for warning in told]
    shown = ", ".join(f"{name} {getattr(source.config, name)}" for name in CONVERSION)
    notes.append(f"{folder}, a {type(teacher).__name__}, is converted: {shown}, length {length:,}.")
    return source


def _config(
    source: Any,
    folder: Path,
    config: RunConfig,
    prepared: Prepared,
    tokenizer: PreTrainedTokenizerFast | None,
) -> models.LinformerConfig:
    """The folder's configuration with what the run changes; contradictions are refused by name."""
    there, given, task = source.config, config.model.options, config.task
    causal, both = CAUSAL.get(task, (False, False))
    if (there.is_decoder, there.is_encoder_decoder) != (causal, both):
        kinds = {(False, False): "an encoder", (True, False): "a causal decoder"}
        have = kinds.get((there.is_decoder, there.is_encoder_decoder), "an encoder and a decoder")
        need = kinds.get((causal, both), "an encoder and a decoder")
        raise UserError(
            f"the task {task!r} needs {need}: got {have} in model.from: {folder}. Name another "
            "folder, or another task."
        )
    changeable = {
        *KEYS_WITHOUT_WEIGHTS,
        *(("k",) if there.projection in PROJECTIONS_OF_ANY_K else ()),
    }
    changes: dict[str, Any] = {"pooler": there.pooler and MODELS[task] is models.LinformerModel}
    if task in LABELLED:
        names = prepared.meta["labels"]
        changes["id2label"] = dict(enumerate(names))
        changes["label2id"] = {name: place for place, name in enumerate(names)}
    if task == "classify":
        if not _same_head(source, names, task):
            changeable.add("pooling")
        if there.feature_size != prepared.meta["feature_size"]:
            raise UserError(
                "the inputs must be what the model of model.from reads, feature_size "
                f"{there.feature_size} (None: text): got {prepared.meta['feature_size']} in the "
                "data."
            )
    if task == "embed":
        changes["pooling"] = given.get("pooling", "mean")
        changeable.add("pooling")
    if task == "translate":
        changes["label_smoothing"] = config.train.label_smoothing
    for name, value in given.items():
        if name in changeable:
            changes[name] = value
        elif getattr(there, name) != value:
            raise UserError(
                f"model.{name} is {value!r} here and {getattr(there, name)!r} in model.from: "
                f"{folder}, whose weights depend on it. Leave it out."
            )
    if tokenizer is not None and len(tokenizer) > there.vocab_size:
        raise UserError(
            f"the tokenizer of model.from: {folder} has {len(tokenizer):,} tokens, and its model "
            f"{there.vocab_size:,}. They do not belong together."
        )
    with user_input("model"):
        return models.LinformerConfig.from_dict(there.to_dict() | changes)


def _same_head(source: Any, labels: list[str], task: Task) -> bool:
    """Whether a classifier is there already, of the same labels in the same order."""
    if not isinstance(source, MODELS[task]):
        return False
    names: Any = source.config.id2label
    return [names[place] for place in sorted(names)] == labels


def _filled(
    source: Any,
    made: models.LinformerConfig,
    folder: Path,
    config: RunConfig,
    prepared: Prepared,
    notes: list[str],
) -> PreTrainedModel:
    """The model of the task with every weight of the source that has a place in it."""
    kind = MODELS[config.task]
    with torch.device("meta"):  # sizes without memory
        parameters = sum(parameter.numel() for parameter in kind(made).parameters())
    counts = prepared.meta["parts"]["train"]
    mean_length = (counts["tokens"] - counts["cut_tokens"]) / max(counts["rows"], 1)
    check_memory(config, parameters=parameters, mean_length=mean_length, made=made)
    set_seed(config.seed)
    target = kind(made)
    own = target.state_dict()
    there = _as_in(target, source)
    labels = prepared.meta["labels"]
    if config.task in LABELLED and not _same_head(source, labels, config.task):
        there = {name: tensor for name, tensor in there.items() if name.startswith(PREFIX)}
    known = {n: t for n, t in there.items() if n in own and own[n].shape == t.shape}
    new = [name for name in own if name not in known]
    wrong = [name for name in new if name in there]
    if wrong:
        raise UserError(
            f"{folder} has another shape of {wrong[0]}: {tuple(there[wrong[0]].shape)}, and the "
            f"model of the task {config.task!r} {tuple(own[wrong[0]].shape)}."
        )
    body = PREFIX if hasattr(target, PREFIX[:-1]) else ""
    inside = [n for n in new if n.startswith(body) and not n.endswith("row_bias")]
    if inside or not known:
        raise UserError(
            f"model.from: {folder} lacks "
            f"{quantities.count(len(inside) or len(new), 'tensor')} of the model, such as "
            f"{(inside or new)[0]}. It holds a {type(source).__name__}."
        )
    with torch.no_grad():
        target.load_state_dict(own | known)
    target.tie_weights()
    set_loss(target, config)
    unused = [n for n in _as_in(target, source) if n not in known]
    new = [name for name in new if not _is_tied(target, name)]
    notes.append(
        f"starting from {folder}: {quantities.count(len(known), 'tensor')} of "
        f"{type(source).__name__}; "
        + (f"new: {_parts(new)}" if new else "nothing is new")
        + (f"; not used: {_parts(unused)}." if unused else ".")
    )
    return target


def _as_in(target: Any, source: Any) -> dict[str, torch.Tensor]:
    """The tensors of the source under the names of the target: with a head's prefix or without."""
    tensors = source.state_dict()
    has, wants = hasattr(source, PREFIX[:-1]), hasattr(target, PREFIX[:-1])
    if wants and not has and not source.config.is_encoder_decoder:
        return {PREFIX + name: tensor for name, tensor in tensors.items()}
    if has and not wants and not source.config.is_encoder_decoder:
        return {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    return dict(tensors)


def _is_tied(model: Any, name: str) -> bool:
    """Whether a tensor is tied to another one, which was loaded."""
    return name in (getattr(model, "all_tied_weights_keys", None) or {})


def _parts(names: Iterable[str]) -> str:
    """Names of modules in place of those of all their tensors."""
    return ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))


def _digest(folder: Path) -> str:
    """Of the configuration and the weights."""
    with user_input(f"cannot read {folder}"):
        paths = [
            path
            for path in sorted(folder.iterdir())
            if path.name == "config.json" or path.suffix in (".safetensors", ".bin")
        ]
        return digest(*(part for path in paths for part in (path.name, path)))
