"""Answers of a run's model to texts.

Texts become questions (`tasks.py`), the pieces of many questions are sorted by length and answered
in batches of at most `tokens_per_batch` tokens, padding included.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..config.on_overflow import policy_for
from ..errors import UserError, user_input
from ..machine_memory import release_freed_memory, require_memory
from ..models.extend import extended
from ..models.load import load_pretrained, load_tokenizer
from ..training.build import MODELS
from .tags import Tag
from .tasks import Classify, FillMask, GoOn, Options, Question, TaskPredictor, Translate
from .vectors import Embed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from ..config.on_overflow import OnOverflow
    from ..config.schema import RunConfig, Task
    from ..data.overflow import Reading
    from ..runs.folder import RunFolder

__all__ = ["Answer", "Options", "Predictor", "predict_texts"]

TOKENS_PER_BATCH = 16_384
PREDICTORS: dict[Task, type[TaskPredictor]] = {
    "mlm": FillMask,
    "classify": Classify,
    "tag": Tag,
    "embed": Embed,
    "clm": GoOn,
    "translate": Translate,
}


@dataclass(frozen=True)
class Answer:
    """What a model says to one input, and how much of it was read."""

    given: str
    answers: list[dict[str, Any]]
    problem: str | None = None  # why there is no answer
    reading: Reading | None = None
    notes: list[str] = field(default_factory=list)  # what the answer leaves out

    def values(self) -> dict[str, Any]:
        """For programs."""
        if self.problem is not None:
            return {"input": self.given, "error": self.problem}
        return {"input": self.given, "answers": self.answers, **self.tokens()}

    def tokens(self) -> dict[str, int]:
        """How many tokens were read, of how many."""
        if self.reading is None:
            return {}
        read, total = self.reading.tokens_read, self.reading.tokens_total
        return {"tokens_read": read, "tokens_total": total}

    def text(self) -> str:
        """For people."""
        lines = []
        for answer in self.answers:
            if "vector" in answer:
                lines.append(" ".join(f"{value:.4f}" for value in answer["vector"]))
                continue
            score = f"{answer['score']:.3f}  " if "score" in answer else ""
            span = ""
            if "start" in answer:
                span = f"{answer['label']}  {answer['start']}-{answer['end']}  "
            lines.append(score + span + answer["text"])
        return "\n".join(lines) or "nothing found"


class Source(Protocol):
    """What is asked of a run's folder: how its model is used, and where the model is."""

    def config(self) -> RunConfig: ...
    def model_folder(self, which: str) -> Path: ...


class Predictor:
    """A run's model, ready to answer.

    `which` is best, last or the step of a checkpoint. `onnx` is an exported file of this run's
    model, which then answers in its place; `model` is one that is loaded already. `on_overflow` is
    how texts are treated that are longer than the model reads, by default as the run treats its
    data.
    """

    def __init__(
        self,
        folder: Source,
        *,
        which: str = "best",
        options: Options,
        onnx: Path | None = None,
        model: Any = None,
        on_overflow: str | None = None,
        tokens_per_batch: int = TOKENS_PER_BATCH,
    ) -> None:
        self.config = config = folder.config()
        self.onnx = onnx
        self.policy: OnOverflow = self._policy(on_overflow)
        self.path = folder.model_folder(which)
        self.model = _model(MODELS[config.task], self.path, onnx) if model is None else model
        self.tokenizer = load_tokenizer(self.path)
        if self.tokenizer is None and getattr(self.model.config, "feature_size", None) is None:
            raise UserError(f"{self.path} has no tokenizer.json, which its model needs.")
        self.task = self.task_with(options, on_overflow)
        self.options = options
        self.tokens_per_batch = tokens_per_batch
        with user_input("the batches are too large"):
            require_memory(
                f"a batch of {tokens_per_batch:,} tokens",
                8 * tokens_per_batch * int(self.model.config.hidden_size),  # in and out of a layer
                remedy="Use fewer tokens per batch.",
            )
        self._extended: tuple[int | None, Any] = (None, self.model)
        torch.manual_seed(options.seed)

    def _policy(self, on_overflow: str | None) -> OnOverflow:
        policy = policy_for("predict", self.config, on_overflow)
        if self.onnx is not None and policy == "extend":
            raise UserError(
                f"{self.onnx} is an exported graph, whose positions and E cannot be extended. Use "
                "--on-overflow truncate or chunk, or leave out --onnx."
            )
        return policy

    def task_with(self, options: Options, on_overflow: str | None = None) -> TaskPredictor:
        """The task of the same model with other options."""
        policy = self._policy(on_overflow)
        kind = PREDICTORS[self.config.task]
        return kind(self.model, self.tokenizer, self.config, options, policy)

    def settings(self) -> dict[str, Any]:
        """What the answers depend on beside the model and the policy."""
        return asdict(self.options) | {"onnx": None if self.onnx is None else str(self.onnx)}

    def question(self, text: str) -> Question:
        """A text, encoded; a UserError if it cannot be answered."""
        if not text.strip():
            raise UserError("the input is empty.")
        return self.task.encode(text)

    @torch.no_grad()
    def answer(self, questions: Sequence[Question]) -> list[list[dict[str, Any]] | UserError]:
        """The answers to questions, in their order; an error where there is none."""
        outputs: list[list[Any]] = [[None] * len(question.pieces) for question in questions]
        problems: dict[int, UserError] = {}
        for batch in self._batches(questions):
            reach = questions[batch[0][0]].reach
            try:
                model = self.reaching(reach)
            except UserError as error:
                problems |= {number: error for number, _ in batch}
                continue
            pieces = [questions[number].pieces[piece] for number, piece in batch]
            places = [(questions[number].facts, piece) for number, piece in batch]
            release_freed_memory()  # batches of ever new sizes would let the process grow
            found = self.task.forward(pieces, model, places)
            for (number, piece), output in zip(batch, found, strict=True):
                outputs[number][piece] = output
        return [
            problems[number] if number in problems else self._merged(question, outputs[number])
            for number, question in enumerate(questions)
        ]

    def _merged(self, question: Question, outputs: list[Any]) -> list[dict[str, Any]] | UserError:
        try:
            return self.task.merge(question, outputs)
        except UserError as error:
            return error

    def _batches(self, questions: Sequence[Question]) -> Iterator[list[tuple[int, int]]]:
        """(question, piece) in batches: of one reach, similar in length, within the budget."""

        def length(place: tuple[int, int]) -> int:
            return len(questions[place[0]].pieces[place[1]])

        def reach(place: tuple[int, int]) -> int:
            return questions[place[0]].reach or 0

        places = [
            (number, piece)
            for number, question in enumerate(questions)
            for piece in range(len(question.pieces))
        ]
        if not self.task.alone:  # what is drawn is drawn in the order of the texts
            places.sort(key=lambda place: (reach(place), length(place)), reverse=True)
        batch: list[tuple[int, int]] = []
        for place in places:
            if batch:
                first = batch[0]
                longest = max(length(first), length(place))
                full = (len(batch) + 1) * longest > self.tokens_per_batch
                other = self.task.equal_lengths and length(place) != length(first)
                if self.task.alone or full or other or reach(place) != reach(first):
                    yield batch
                    batch = []
            batch.append(place)
        if batch:
            yield batch

    def reaching(self, reach: int | None) -> Any:
        """The model, extended to `reach` tokens. One extended copy is kept."""
        if reach is None:
            return self.model
        if self._extended[0] != reach:
            self._extended = (None, self.model)  # free the other copy first
            with user_input("the text is too long"):
                self._extended = (reach, extended(self.model, reach))
        return self._extended[1]


def predict_texts(
    folder: RunFolder,
    texts: Iterable[str],
    *,
    which: str = "best",
    options: Options,
    onnx: Path | None = None,
    on_overflow: str | None = None,
) -> Iterator[Answer]:
    """Answers in the order of the texts, one at a time as they come.

    For features a text is a JSON list of numbers. An input that cannot be answered gives an answer
    with its `problem`, and does not stop the others. The options are those of `Predictor`.
    """
    predictor = Predictor(folder, which=which, options=options, onnx=onnx, on_overflow=on_overflow)
    for text in texts:
        try:
            question = predictor.question(text)
            (found,) = predictor.answer([question])
            if isinstance(found, UserError):
                raise found
            yield Answer(text, found, reading=question.reading, notes=question.notes())
        except UserError as error:
            yield Answer(text, [], str(error))


def _model(kind: Any, path: Path, onnx: Path | None) -> Any:
    if onnx is not None:
        from .onnx import OnnxInstead

        with user_input(f"cannot read {path / 'config.json'}"):
            config = kind.config_class.from_pretrained(
                path, trust_remote_code=False, local_files_only=True
            )
        with user_input(f"cannot use {onnx}"):
            return OnnxInstead(onnx, kind, config)
    model = load_pretrained(kind, path).eval()
    return model.to("cuda" if torch.cuda.is_available() else "cpu")
