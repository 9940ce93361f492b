"""What each task does with a text: encode it in pieces, call the model on pieces, merge.

A new task is a subclass of `TaskPredictor`, listed in `answers.py`. What is longer than the model
reads is cut by `data/overflow.py` in `encode`, so that every answer knows how much of its text was
read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..config.answer_options import check_temperature
from ..data.collate import pad
from ..data.encode import UNBOUNDED, Bounds, encode_long
from ..data.features import features_of
from ..data.overflow import (
    Overflow,
    Reading,
    at_boundaries,
    mean_of_pieces,
    most_central,
)
from ..data.tokenizer import frame_of
from ..errors import UserError, cut, user_input
from ..evaluate.translations import room
from ..models.extend import extended_length
from ..models.load import quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..config.on_overflow import OnOverflow
    from ..config.schema import RunConfig

SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"')\]\u00bb\u201d]*\s+|\n+")


@dataclass(frozen=True)
class Options:
    """How to answer."""

    top: int = 5
    max_new_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0
    redact: bool = False
    size: int | None = None

    def __post_init__(self) -> None:
        check_temperature(self.temperature)


@dataclass(frozen=True)
class Question:
    """A text on its way to the model: the pieces that are read, in their frames."""

    pieces: list[np.ndarray]  # ids (N), or features (N, size)
    reading: Reading
    reach: int | None = None  # the length that the model is extended to, if it has to be
    facts: Any = field(default=None, compare=False)  # what `merge` needs to know
    left_out: str | None = None  # what is not answered because it was not read

    def notes(self) -> list[str]:
        """Sentences about what was not read."""
        return [text for text in (self.reading.line(), self.left_out) if text is not None]


class TaskPredictor:
    """The base of the tasks.

    `encode` raises a UserError for a text that cannot be answered, and ends early where the bounds
    say so. `forward` gets pieces of one
    batch, the model to call (the extended one, where a question has a reach) and the facts of their
    questions with the places of the pieces in these; it returns one output for each piece. `merge`
    makes the answers of a question from the outputs of its pieces, or raises a UserError.
    """

    equal_lengths = False  # whether the pieces of a batch must have one length
    alone = False  # whether every piece is a batch of its own
    prompt = False  # whether the text is continued
    columns: tuple[str, ...] = ("predictions",)  # of the answers in a table, see `result`
    vector_size: int | None = None  # of the vector that is the answer

    def __init__(
        self, model: Any, tokenizer: Any, config: RunConfig, options: Options, policy: OnOverflow
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.options = options
        self.policy = policy
        if tokenizer is not None:
            self.frame = frame_of(tokenizer, config.task, prompt=self.prompt)
        self.overflow = self._overflow()

    def _overflow(self) -> Overflow:
        return Overflow(
            self.policy,
            self.config.data.max_length,
            0 if self.tokenizer is None else self.frame.size,
            self.config.data.chunk_overlap,
        )

    def encode(self, text: str, bounds: Bounds = UNBOUNDED) -> Question:
        ids = self.tokens(text, bounds).ids
        pieces = self.overflow.pieces(len(ids))
        return self.question(ids, pieces, facts=None)

    def tokens(self, text: str, bounds: Bounds = UNBOUNDED) -> Any:
        """The encoding of a text without frame."""

        def check(tokens: int) -> None:
            bounds.check(tokens)
            self.overflow.check_part(tokens)

        return encode_long(self.tokenizer, text, replace(bounds, check=check))

    def question(self, ids: Sequence[int], pieces: Sequence[range], *, facts: Any) -> Question:
        """Pieces of ids in their frames."""
        framed = [self.frame.row(ids[p.start : p.stop]) for p in pieces]
        reading = self.overflow.reading(len(ids), pieces)
        return Question(framed, reading, self.reach(len(ids)), facts)

    def reach(self, length: int) -> int | None:
        """What the model must be extended to for a text of `length` tokens without frame."""
        limit = self.overflow.max_length
        if self.policy != "extend" or limit is None or self.overflow.fits(length):
            return None
        more = self.config.data.max_length - limit  # tokens that are written
        return extended_length(length + self.overflow.frame + more, self.config.data.max_length)

    def batch(self, pieces: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        """Pieces of ids, padded to the longest."""
        mask = pad([np.ones(len(piece), dtype=np.int64) for piece in pieces], 0)
        pad_id = self.tokenizer.pad_token_id
        batch = {"input_ids": pad(pieces, pad_id), "attention_mask": mask}
        return {name: value.to(self.model.device) for name, value in batch.items()}

    def forward(
        self, pieces: Sequence[np.ndarray], model: Any, places: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        raise NotImplementedError

    def merge(self, question: Question, outputs: list[Any]) -> list[dict[str, Any]]:
        raise NotImplementedError

    def result(self, answers: list[dict[str, Any]]) -> dict[str, Any]:
        """Answers as the columns of a table: the best one, its score, and all of them."""
        best = answers[0] if answers else {}
        known = {
            "prediction": best.get("text"),
            "prediction_score": best.get("score"),
            "predictions": answers,
        }
        return {name: known[name] for name in self.columns}


@dataclass(frozen=True)
class _Masks:
    """Where the masks of a text are: in which piece, and where in it."""

    asked: list[tuple[int, int]]


def masks_at(*places: int) -> Any:
    """The facts of a text of one piece with masks at these places."""
    return _Masks([(0, place) for place in places])


class FillMask(TaskPredictor):
    """The likeliest tokens for each mask, in the piece that shows most of what is around it."""

    columns = ("prediction", "prediction_score", "predictions")

    def result(self, answers: list[dict[str, Any]]) -> dict[str, Any]:
        """The best one is a token for the first mask."""
        return super().result(answers) | {"prediction": answers[0]["token"]}

    def encode(self, text: str, bounds: Bounds = UNBOUNDED) -> Question:
        ids = self.tokens(text, bounds).ids
        places = np.flatnonzero(np.asarray(ids) == self.tokenizer.mask_token_id)
        if not len(places):
            raise UserError(f"the text must hold {self.tokenizer.mask_token}: got {cut(text)!r}.")
        pieces = self.overflow.pieces(len(ids))
        home = most_central(pieces, places)
        used = sorted({int(piece) for piece in home if piece >= 0})
        if not used:
            raise UserError(
                f"every {self.tokenizer.mask_token} is after the first {pieces[0].stop:,} of "
                f"{len(ids):,} tokens, which are not read (on_overflow: {self.policy}). Use "
                "on_overflow: chunk."
            )
        before = len(self.frame.before)
        asked = [
            (used.index(int(piece)), before + int(place) - pieces[piece].start)
            for place, piece in zip(places, home, strict=True)
            if piece >= 0
        ]
        question = self.question(ids, [pieces[number] for number in used], facts=_Masks(asked))
        if len(asked) == len(places):
            return question
        name, missing = self.tokenizer.mask_token, len(places) - len(asked)
        text = f"{missing:,} of {len(places):,} {name} were not read and are not filled."
        return replace(question, left_out=text)

    def forward(
        self, pieces: Sequence[np.ndarray], model: Any, places: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        rows, columns = [], []
        for row, (facts, number) in enumerate(places):
            here = [place for piece, place in facts.asked if piece == number]
            rows += [row] * len(here)
            columns += here
        logits = _logits_at(model, self.batch(pieces), rows, columns)  # (masks, V)
        top = logits.float().softmax(-1).topk(min(self.options.top, logits.shape[-1]))
        outputs: list[list[Any]] = [[] for _ in pieces]
        for row, scores, ids in zip(rows, top.values.tolist(), top.indices.tolist(), strict=True):
            outputs[row].append((scores, ids))
        return outputs

    def merge(self, question: Question, outputs: list[Any]) -> list[dict[str, Any]]:
        waiting = [iter(found) for found in outputs]
        answers = []
        for piece, place in question.facts.asked:
            scores, tokens = next(waiting[piece])
            for score, token in zip(scores, tokens, strict=True):
                filled = question.pieces[piece].copy()
                filled[place] = token
                answers.append(
                    {
                        "token": self.tokenizer.decode([token]),
                        "score": score,
                        "text": self._without_frame(filled.tolist()),
                    }
                )
        return answers

    def _without_frame(self, ids: list[int]) -> str:
        """The text with its masks, without beginning and end."""
        end = len(ids) - len(self.frame.after)
        return str(self.tokenizer.decode(ids[len(self.frame.before) : end]))


def _logits_at(model: Any, batch: dict[str, torch.Tensor], rows: Any, columns: Any) -> torch.Tensor:
    """The logits at some positions: those of all would be by far the largest thing in memory."""
    if not hasattr(model, "linformer"):  # an exported model gives all of them
        return model(**batch).logits[rows, columns]
    hidden = model.linformer(**batch).last_hidden_state[rows, columns]
    return model.lm_head(model.transform(hidden))


class Classify(TaskPredictor):
    """The likeliest labels; the probabilities of pieces are averaged, weighted by their tokens."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        more = ("predictions",) if self.options.top > 1 else ()
        self.columns = ("prediction", "prediction_score", *more)

    def encode(self, text: str, bounds: Bounds = UNBOUNDED) -> Question:
        if self.tokenizer is not None:
            return super().encode(text, bounds)
        values = _features(text, self.model.config.feature_size)
        pieces = self.overflow.pieces(len(values))
        cut = [values[piece.start : piece.stop] for piece in pieces]
        reading = self.overflow.reading(len(values), pieces)
        return Question(cut, reading, self.reach(len(values)))

    def forward(
        self, pieces: Sequence[np.ndarray], model: Any, places: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        batch = self.batch(pieces) if self.tokenizer is not None else self._feature_batch(pieces)
        return list(model(**batch).logits.float().softmax(-1).double().cpu().numpy())

    def _feature_batch(self, pieces: Sequence[np.ndarray]) -> dict[str, torch.Tensor]:
        longest, width = max(map(len, pieces)), pieces[0].shape[1]
        values = np.zeros((len(pieces), longest, width), dtype=np.float32)
        mask = np.zeros((len(pieces), longest), dtype=np.int64)
        for row, piece in enumerate(pieces):
            values[row, : len(piece)], mask[row, : len(piece)] = piece, 1
        batch = {
            "inputs_embeds": torch.from_numpy(values),
            "attention_mask": torch.from_numpy(mask),
        }
        return {name: value.to(self.model.device) for name, value in batch.items()}

    def merge(self, question: Question, outputs: list[Any]) -> list[dict[str, Any]]:
        likely = mean_of_pieces(np.stack(outputs), [len(piece) for piece in question.pieces])
        check_finite(likely)
        names = self.model.config.id2label
        best = np.argsort(-likely, kind="stable")[: self.options.top]
        return [{"text": names[int(label)], "score": float(likely[label])} for label in best]


def check_finite(likely: np.ndarray) -> None:
    """Refuse probabilities that are none."""
    if not np.isfinite(likely).all():
        raise UserError(
            "the model has no finite answer to this input: its numbers are not finite, or far "
            "larger than those that the model was trained on."
        )


class GoOn(TaskPredictor):
    """The text and what follows it. Of a text that is too long the end is kept."""

    equal_lengths = True
    prompt = True
    columns = ("prediction",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.alone = self.options.temperature > 0  # what is drawn must not depend on a batch

    @property
    def _wanted(self) -> int:
        return self.options.max_new_tokens or self.config.evaluate.max_new_tokens

    def _overflow(self) -> Overflow:
        limit = None  # without learned positions a decoder reads on and on
        config = self.model.config
        if config.position_embedding_type == "learned":
            positions = config.max_position_embeddings
            limit = positions - min(self._wanted, positions // 2)
        return Overflow(
            self.policy,
            limit,
            self.frame.size,
            keep="end",
            limit="data.max_length - the tokens to write",
            instead="truncate or extend",
        )

    def forward(
        self, pieces: Sequence[np.ndarray], model: Any, places: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        drawn = self.options.temperature > 0
        with quiet():  # transformers warns of a limit that a decoder without positions has not
            made = model.generate(
                **self.batch(pieces),
                max_new_tokens=room(model, self._wanted, used=len(pieces[0])),
                do_sample=drawn,
                **({"temperature": self.options.temperature} if drawn else {}),
            )
        return list(self.tokenizer.batch_decode(made, skip_special_tokens=True))

    def merge(self, question: Question, outputs: list[Any]) -> list[dict[str, Any]]:
        return [{"text": outputs[0]}]


class Translate(TaskPredictor):
    """The translation. Pieces end where a sentence or a word ends; theirs are joined."""

    columns = ("prediction",)

    def encode(self, text: str, bounds: Bounds = UNBOUNDED) -> Question:
        encoding = self.tokens(text, bounds)
        ids = encoding.ids
        if self.policy != "chunk" or self.overflow.fits(len(ids)):
            pieces = self.overflow.pieces(len(ids))
        else:
            assert self.overflow.max_length is not None
            free = self.overflow.max_length - self.overflow.frame
            pieces = at_boundaries(len(ids), max(free, 1), *_boundaries(text, encoding))
        return self.question(ids, pieces, facts=None)

    def forward(
        self, pieces: Sequence[np.ndarray], model: Any, places: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        options = self.config.evaluate
        made = model.generate(
            **self.batch(pieces),
            num_beams=options.beams,
            length_penalty=options.length_penalty,
            max_new_tokens=room(
                model,
                self.options.max_new_tokens or options.max_new_tokens,
                beams=len(pieces) * options.beams,
            ),
            do_sample=False,
        )
        return [t.strip() for t in self.tokenizer.batch_decode(made, skip_special_tokens=True)]

    def merge(self, question: Question, outputs: list[Any]) -> list[dict[str, Any]]:
        return [{"text": " ".join(outputs)}]


def _boundaries(text: str, encoding: Any) -> tuple[np.ndarray, np.ndarray]:
    """(L) each: whether a token begins a sentence, and whether it begins a word."""
    begins = np.asarray([start for start, _ in encoding.offsets], dtype=np.int64)
    ends = np.asarray([found.end() for found in SENTENCE_END.finditer(text)], dtype=np.int64)
    sentences = np.zeros(len(begins), dtype=bool)
    # A token that takes the space before its word begins before the sentence does.
    sentences[np.clip(np.searchsorted(begins, ends - 1), 0, len(begins) - 1)] = True
    words = np.asarray([-1 if w is None else w for w in encoding.word_ids], dtype=np.int64)
    starts = np.ones(len(words), dtype=bool)
    starts[1:] = words[1:] != words[:-1]
    return sentences, starts


def _features(text: str, width: int) -> np.ndarray:
    rule = f"the input must be a JSON list of positions with {width} finite number(s) each"
    with user_input(f"{rule}: got {cut(text)!r}"):
        values = features_of(json.loads(text))
        if values.shape[1] != width:
            raise ValueError(f"it has {values.shape[1]} at each position")
        return values
