"""A model that is served: loaded once, described for clients, called by the worker."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from ..config.answer_options import TASKS as EFFECTIVE
from ..config.on_overflow import POLICIES, why_refused
from ..core.cpu.gemm import batch_invariant
from ..data.encode import UNBOUNDED, Bounds
from ..data.iob import types_of
from ..errors import UserError, user_input
from ..predict.answers import Options, Predictor
from ..training.build import MODELS
from .cost import EncoderCost
from .exact_batches import SHORTEST, keeps_bits, split_heads
from .folders import SentenceModel, source_of
from .heads import HeadView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from ..config.schema import Task
    from ..data.overflow import Reading
    from ..predict.tasks import Question, TaskPredictor

Backend = Literal["torch", "onnxruntime", "onnxruntime int8"]
TASK_NAMES: dict[Task, str] = {
    "mlm": "fill",
    "classify": "classify",
    "tag": "tag",
    "embed": "embed",
    "clm": "generate",
    "translate": "translate",
}
MORE_OPTIONS: dict[str, tuple[str, ...]] = {"generate": ("top_p", "stop", "stream")}
TURN = 0.0001  # seconds in which another thread takes a lock that is free
KEPT = 64  # combinations of options whose tasks are kept
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ServedModel:
    """A model by its name. `backend` says what computes it; a file that ends in .onnx decides it.

    Everything that computes is called by the worker thread alone.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        backend: Backend = "torch",
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        if not NAME.fullmatch(name):
            raise UserError(
                "the name of a model must have letters, digits, '.', '_' and '-' only, at most "
                f"100: got {name!r}. Give it one with NAME=FOLDER."
            )
        self.name = name
        source, onnx, model = source_of(path)
        self.backend: Backend = backend
        if onnx is not None:
            self.backend = "onnxruntime int8" if ".int8." in onnx.name else "onnxruntime"
        elif backend != "torch":
            if model is not None:
                raise UserError(
                    f"{path} is a model of sentence-transformers or one with swapped attention, "
                    "which is not exported. Leave out --onnx."
                )
            onnx = _exported(path, self, say)
        self.predictor = Predictor(source, options=Options(), onnx=onnx, model=model)
        self.task: str = TASK_NAMES[self.predictor.config.task]
        self.created = int(self.predictor.path.stat().st_mtime)
        self.config: Any = self.predictor.model.config
        if onnx is None:
            split_heads(self.predictor.model, self.predictor.config.task)
        self.head_view = HeadView(name, self.predictor)
        self.cost = _cost(self.predictor)
        self.parameters = _parameters(self.predictor)
        self.extends = onnx is None and model is None
        self._tasks: dict[tuple[Options, str | None], TaskPredictor] = {}
        self._lock = threading.Lock()
        self.longest = self.predictor.task.overflow.max_length
        self.batches = self.task not in ("generate", "translate") and keeps_bits(
            self.predictor.task, self.longest
        )

    def task_with(self, options: Options, on_overflow: str | None) -> TaskPredictor:
        """The task with these options; a UserError if they have no meaning."""
        if on_overflow == "extend" and not self.extends:
            raise UserError(
                "on_overflow: extend needs a model of this package on torch. Use chunk or truncate."
            )
        key = (options, on_overflow)
        with self._lock:
            found = self._tasks.get(key)
        if found is None:
            found = self.predictor.task_with(options, on_overflow)
            with self._lock:
                while len(self._tasks) >= KEPT:
                    self._tasks.pop(next(iter(self._tasks)))
                self._tasks[key] = found
        return found

    def question(
        self, task: TaskPredictor, given: str | Sequence[int], bounds: Bounds = UNBOUNDED
    ) -> Question:
        """A text or token ids, cut as the task reads them."""
        if isinstance(given, str):
            with self._tokenizing(given, bounds) as taking_turns:
                return task.encode(given, taking_turns)
        size = self.config.vocab_size
        ids = task.frame.removed(given) if given else []
        if not ids or not all(0 <= token < size for token in ids):
            raise UserError(f"token ids must be 0 to {size - 1}, and at least one of a text.")
        return task.question(ids, task.overflow.pieces(len(ids)), facts=None)

    def conversation(self, messages: list[dict[str, str]]) -> str:
        """The text that answers a conversation, by the template of the tokenizer.

        Its template is a program from the folder, which transformers runs in Jinja's sandbox.
        """
        tokenizer = self.predictor.tokenizer
        if tokenizer is None or tokenizer.chat_template is None:
            raise UserError(
                f"{self.name} continues texts and knows no conversations: its tokenizer has no "
                "chat template. Use POST /v1/completions."
            )
        with user_input(f"the chat template of {self.name} cannot be applied to these messages"):
            text = str(
                tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            )
        before = tokenizer.convert_ids_to_tokens(list(self.predictor.task.frame.before))
        return text.removeprefix("".join(before))  # the frame adds it

    def beginning(self, text: str, length: int, bounds: Bounds) -> tuple[list[int], Reading]:
        """The first tokens of a text for the head view."""
        with self._tokenizing(text, bounds) as taking_turns:
            return self.head_view.piece(text, length, taking_turns)

    @contextmanager
    def _tokenizing(self, text: str, bounds: Bounds) -> Iterator[Bounds]:
        """One thread at a time, for the memory; others may have their turn between two windows."""
        if not text.strip():
            raise UserError("the input is empty.")

        def check(tokens: int) -> None:
            if tokens:
                self._lock.release()
                time.sleep(TURN)
                self._lock.acquire()
            bounds.check(tokens)

        with self._lock:
            yield replace(bounds, check=check)

    def batch_key(self, task: TaskPredictor, question: Question, piece: int) -> Any:
        """Pieces with the same key may share a batch; None: alone."""
        length = len(question.pieces[piece])
        if not self.batches or length < SHORTEST or question.reach is not None:
            return None
        return (self.name, id(task), length)

    @torch.no_grad()
    @batch_invariant()
    def forward(
        self,
        task: TaskPredictor,
        pieces: Sequence[np.ndarray],
        reach: int | None,
        places: Sequence[tuple[Any, int]],
    ) -> list[Any]:
        """The outputs of pieces, in one batch."""
        return task.forward(pieces, self.predictor.reaching(reach), places)

    def describe(self) -> dict[str, Any]:
        """For clients: an entry of /v1/models."""
        config, own = self.config, self.predictor.config
        labels = None
        if self.task in ("classify", "tag"):
            labels = [config.id2label[number] for number in range(config.num_labels)]
            labels = types_of(labels) if self.task == "tag" else labels
        is_embedding = self.task == "embed"
        allowed = [
            policy
            for policy in POLICIES
            if not why_refused("predict", policy, own.task) and (policy != "extend" or self.extends)
        ]
        tokenizer = self.predictor.tokenizer
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "linformer-kit",
            "task": self.task,
            "input": "features" if tokenizer is None else "text",
            "backend": self.backend,
            "max_length": self.longest,
            "labels": labels,
            "mask_token": tokenizer.mask_token if tokenizer and self.task == "fill" else None,
            "dimensions": config.hidden_size if is_embedding else None,
            "matryoshka": list(own.train.matryoshka) or None if is_embedding else None,
            "on_overflow": {"default": self.predictor.policy, "allowed": allowed},
            "options": self.options,
            "parameters": self.parameters,
            "layers": getattr(config, "num_hidden_layers", None),
            "hidden_size": getattr(config, "hidden_size", None),
            "attention": _attention(config),
            "head_view": self.head_view.describe(),
        }

    @property
    def options(self) -> list[str]:
        """The keys of /predict that have an effect."""
        own = self.predictor.config.task
        known = [name for name, tasks in EFFECTIVE.items() if own in tasks]
        return [*known, *MORE_OPTIONS.get(self.task, ()), "on_overflow"]


def load_models(
    given: Sequence[str], *, backend: Backend = "torch", say: Callable[[str], None]
) -> dict[str, ServedModel]:
    """The models of [NAME=]FOLDER, each loaded; a UserError if one cannot be."""
    found: dict[str, ServedModel] = {}
    places: dict[str, Path] = {}
    for each in given:
        name, equals, rest = each.partition("=")
        if not equals or Path(each).exists():
            name, rest = "", each
        path = Path(rest)
        if not path.exists():
            raise UserError(f"there is no folder {path}.")
        name = name or path.resolve().name.removesuffix(".onnx")
        if name in places:
            raise UserError(
                f"two models have the name {name!r}: {places[name]} and {path}. Give one another "
                "name with NAME=FOLDER."
            )
        places[name] = path
    for name, path in places.items():
        begin = time.monotonic()
        found[name] = model = ServedModel(name, path, backend=backend, say=say)
        how = "" if model.batches or model.task == "generate" else ", each text alone"
        say(
            f"{name}: {model.task}, {model.backend}, {model.parameters:,} parameters{how}; loaded "
            f"in {time.monotonic() - begin:.1f} s"
        )
    return found


def _exported(path: Path, model: ServedModel, say: Callable[[str], None]) -> Path:
    """The model of a folder as ONNX, in a folder that lives as long as the model."""
    from ..export.exporter import export_onnx
    from ..export.load import load_model

    say(f"{model.name}: exporting to ONNX")
    model._exported = tempfile.TemporaryDirectory(prefix="linformer-serve-")  # type: ignore[attr-defined]
    file = Path(model._exported.name) / "model.onnx"  # type: ignore[attr-defined]
    int8 = model.backend == get_args(Backend)[2]
    written = export_onnx(load_model(path), file, int8=int8)
    main = next(each for each in written if each.path == file)
    return main.int8.path if int8 and main.int8 is not None else main.path


def _cost(predictor: Predictor) -> EncoderCost | None:
    from ..models import LinformerConfig, LinformerModel

    if not isinstance(predictor.model.config, LinformerConfig):
        return None
    theirs = isinstance(predictor.model, SentenceModel)
    kind = LinformerModel if theirs else MODELS[predictor.config.task]
    return EncoderCost.of(kind, predictor.model.config)


def _parameters(predictor: Predictor) -> int:
    if hasattr(predictor.model, "parameters"):
        return sum(parameter.numel() for parameter in predictor.model.parameters())
    with torch.device("meta"):
        made = MODELS[predictor.config.task](predictor.model.config)
    return sum(parameter.numel() for parameter in made.parameters())


def _attention(config: Any) -> str | None:
    """The attention of a model of this package in a few words."""
    kind = getattr(config, "projection", None)
    if kind is None:
        return None
    if kind == "full":
        return "full"
    if getattr(config, "is_decoder", False):
        return f"slots={config.num_slots} window={config.window}"
    window = f" window={config.window}" if config.window else ""
    return f"{kind} k={config.k}{window}"
