"""Every key of a run's configuration, with its type, its default and what it may be.

The shipped files in `linformer_kit/configs/` have a comment on each key; a test checks them against
this schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from .model_section import ModelSection
from .on_overflow import WITHOUT_OVERLAP, OnOverflow, why_refused
from .ranges import (
    Batch,
    Beams,
    LearningRate,
    Length,
    Megabytes,
    Penalty,
    Positive,
    Rate,
    Section,
    Seed,
    Share,
    ShareAbove0,
    Strength,
    Text,
    Threads,
    Vocabulary,
    Whole,
    Width,
    Workers,
)

Task = Literal["mlm", "clm", "classify", "tag", "embed", "translate"]
LABELLED: tuple[Task, ...] = ("classify", "tag")  # tasks with labels
Format = Literal["auto", "text", "csv", "tsv", "jsonl", "parquet", "conll"]
Documents = Literal["file", "line", "blank-line"]
TokenizerKind = Literal["bpe", "unigram", "wordpiece", "byte", "character", "word"]
Schedule = Literal["constant", "linear", "cosine", "inverse-sqrt"]
Precision = Literal["float32", "bfloat16", "float16"]


class Sides(Section):
    """Two files whose lines belong together: a translation."""

    source: Text
    target: Text


def _kind_of_source(value: object) -> str:
    if isinstance(value, list):
        return "(several)"
    return "(two sides)" if isinstance(value, dict | Sides) else "(one)"


Source = Annotated[
    Annotated[Text, Tag("(one)")]
    | Annotated[Sides, Tag("(two sides)")]
    | Annotated[list[Text], Field(min_length=1), Tag("(several)")],
    Discriminator(_kind_of_source),
]


class DataSection(Section):
    """Where the texts come from, and how they become examples."""

    train: Source
    validation: Source | None = None
    test: Source | None = None
    format: Format = "auto"
    documents: Documents = "blank-line"
    text: Text = "text"
    label: Text = "label"
    features: Text | None = None
    spans: Text = "spans"
    words: Text | None = None
    tags: Text = "tags"
    anchor: Text | None = None
    positive: Text = "positive"
    negative: Text | None = None
    source: Text = "source"
    target: Text = "target"
    validation_share: Share = 0.05
    test_share: Share = 0.05
    max_length: Length = 512
    on_overflow: OnOverflow | None = None
    chunk_overlap: Share = 0.125
    pack: bool = True
    max_document_mb: Megabytes = 64
    options: dict[str, Any] = Field(default_factory=dict)
    cache: Text = "runs/.prepared"


_USUAL_OVERLAP = DataSection.model_fields["chunk_overlap"].default


class TokenizerSection(Section):
    """How text becomes tokens: trained on the corpus, or loaded."""

    kind: TokenizerKind = "bpe"
    vocab_size: Vocabulary = 8000
    lowercase: bool = False
    train_mb: Megabytes = 100
    path: Text | None = None


class TrainSection(Section):
    """How the model is trained."""

    steps: Positive = 1000
    batch_size: Batch = 16
    accumulate: Batch = 1
    lr: LearningRate = 5e-4
    head_lr: LearningRate | None = None
    schedule: Schedule = "cosine"
    warmup: Whole = 100
    weight_decay: Strength = 0.01
    beta1: Rate = 0.9
    beta2: Rate = 0.98
    clip: Strength = 1.0
    label_smoothing: Rate = 0.0
    mask_share: ShareAbove0 = 0.15
    whole_words: bool = False
    matryoshka: list[Width] = Field(default_factory=list)
    scale: Annotated[float, Field(gt=0.0, le=1000.0)] = 20.0
    bucket: bool = True
    precision: Precision = "float32"
    compile: bool = False
    gradient_checkpointing: bool = False
    block_rows: Whole = 0
    scratch: Text | None = None
    fsdp: bool = False
    sequence_parallel: Positive = 1
    threads: Threads = 0
    keep_memory: bool = True
    workers: Workers = 0
    log_every: Positive = 20
    eval_every: Positive = 200
    save_every: Positive = 200
    keep: Positive = 2


class EvaluateSection(Section):
    """How the model is scored, while it trains and at the end."""

    batch_size: Batch = 16
    max_examples: Positive | None = None
    max_test_examples: Positive | None = None
    beams: Beams = 4
    length_penalty: Penalty = 1.0
    max_new_tokens: Length = 128

    def limit_key(self, part: str) -> str:
        """The key that limits the rows of a part. The test part has its own: its scores are the
        result of a run, and compared with those of others.
        """
        return "max_test_examples" if part == "test" else "max_examples"

    def limit(self, part: str) -> int | None:
        found: int | None = getattr(self, self.limit_key(part))
        return found


class RunConfig(Section):
    """The whole of a run."""

    task: Task
    run: Text
    seed: Seed = 0
    data: DataSection
    tokenizer: TokenizerSection = TokenizerSection()
    model: ModelSection = ModelSection()
    train: TrainSection = TrainSection()
    evaluate: EvaluateSection = EvaluateSection()

    @model_validator(mode="after")
    def _agree(self) -> RunConfig:
        data, train = self.data, self.train
        if train.batch_size % train.accumulate:
            raise ValueError(
                f"train.batch_size must be a multiple of train.accumulate: "
                f"got {train.batch_size} and {train.accumulate}."
            )
        if data.validation_share + data.test_share >= 1.0:
            raise ValueError(
                "data.validation_share and data.test_share must leave something to train on: "
                f"got {data.validation_share} and {data.test_share}."
            )
        if data.features is not None and self.task != "classify":
            raise ValueError(
                f"data.features belongs to the task 'classify': got task {self.task!r}."
            )
        if data.on_overflow is not None:
            reason = why_refused("train", data.on_overflow, self.task)
            if reason is not None:
                raise ValueError(
                    f"data.on_overflow: {data.on_overflow} has no meaning in a run of the task "
                    f"{self.task!r}: {reason}"
                )
        if self.task in WITHOUT_OVERLAP and data.chunk_overlap != _USUAL_OVERLAP:
            raise ValueError(
                f"data.chunk_overlap has no effect in the task {self.task!r}, whose pieces do not "
                f"overlap: got {data.chunk_overlap}. Leave it out."
            )
        for name in ("anchor", "negative"):
            if getattr(data, name) is not None and self.task != "embed":
                raise ValueError(
                    f"data.{name} belongs to the task 'embed': got task {self.task!r}."
                )
        if data.negative is not None and data.anchor is None:
            raise ValueError("data.negative needs data.anchor: triplets have all three columns.")
        if data.anchor is not None and data.on_overflow == "chunk":
            raise ValueError(
                "data.on_overflow: chunk has no meaning with data.anchor: which part of a text "
                "belongs to a part of the other is not known. Use truncate or error."
            )
        if train.matryoshka:
            self._check_matryoshka()
        if data.words is not None and self.task != "tag":
            raise ValueError(f"data.words belongs to the task 'tag': got task {self.task!r}.")
        if train.label_smoothing and self.task != "translate":
            raise ValueError(
                f"train.label_smoothing belongs to the task 'translate': got task {self.task!r}."
            )
        if train.head_lr is not None and self.task not in LABELLED:
            raise ValueError(
                "train.head_lr is the rate of a classifier, so it belongs to the tasks "
                f"{', '.join(map(repr, LABELLED))}: got task {self.task!r}."
            )
        if train.whole_words and self.task != "mlm":
            raise ValueError(
                f"train.whole_words belongs to the task 'mlm': got task {self.task!r}."
            )
        if self.task == "embed" and train.batch_size // train.accumulate < 2:
            raise ValueError(
                "train.batch_size must be at least 2 x train.accumulate for the task 'embed', "
                "where the other rows are the negatives: got "
                f"{train.batch_size} and {train.accumulate}."
            )
        for name in ("train", "validation", "test"):
            if isinstance(getattr(data, name), Sides) and self.task != "translate":
                raise ValueError(
                    f"data.{name} with a source and a target belongs to the task 'translate': "
                    f"got task {self.task!r}."
                )
        if self.model.start is not None:
            self._check_start()
            return self
        if self.model.needs_window():
            raise ValueError(
                "model.k must be at least 1 without a model.window: got "
                f"{self.model.options['k']}. Give a window, or a larger k."
            )
        if self.task != "clm":
            for name, k in self.model.projected_lengths().items():
                if k > data.max_length:
                    raise ValueError(
                        f"model.{name} must be at most data.max_length, for it is the length that "
                        f"inputs are compressed to: got {k} and {data.max_length}. Set a smaller "
                        f"model.{name}, a larger data.max_length, or model.projection=full."
                    )
        return self

    def _check_start(self) -> None:
        """With `model.from` the tokenizer comes from there, and k is checked when it is known."""
        usual = TokenizerSection()
        for name in TokenizerSection.model_fields:
            if getattr(self.tokenizer, name) != getattr(usual, name):
                raise ValueError(
                    f"tokenizer.{name} has no effect with model.from, whose tokenizer comes along: "
                    f"got {getattr(self.tokenizer, name)!r}. Leave it out."
                )

    def _check_matryoshka(self) -> None:
        sizes = self.train.matryoshka
        if self.task != "embed":
            raise ValueError(
                f"train.matryoshka belongs to the task 'embed': got task {self.task!r}."
            )
        if len(set(sizes)) != len(sizes):
            raise ValueError(f"train.matryoshka must have each size once: got {sizes}.")
