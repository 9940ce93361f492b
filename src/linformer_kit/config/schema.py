"""Every key of a run's configuration, with its type, its default and what it may be.

The shipped files in `configs/` carry a comment on each key; a test holds them to this schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Task = Literal["mlm", "clm", "classify", "translate"]
Format = Literal["auto", "text", "csv", "tsv", "jsonl", "parquet"]
Documents = Literal["file", "line", "blank-line"]
TokenizerKind = Literal["bpe", "unigram", "wordpiece", "byte", "character", "word"]
Schedule = Literal["constant", "linear", "cosine", "inverse-sqrt"]
Precision = Literal["float32", "bfloat16", "float16"]

Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
NotNegative = Annotated[float, Field(ge=0.0)]
Above0 = Annotated[float, Field(gt=0.0)]


class Section(BaseModel):
    """Unknown keys are refused, types are not converted, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Sides(Section):
    """Two files whose lines belong together: a translation."""

    source: str
    target: str


Source = str | Sides | list[str]


class DataSection(Section):
    """Where the texts come from, and how they become examples."""

    train: Source
    validation: Source | None = None
    test: Source | None = None
    format: Format = "auto"
    documents: Documents = "blank-line"
    text: str = "text"
    label: str = "label"
    features: str | None = None
    source: str = "source"
    target: str = "target"
    validation_share: Share = 0.05
    test_share: Share = 0.05
    max_length: Positive = 512
    pack: bool = True
    max_document_mb: Positive = 64
    options: dict[str, Any] = {}
    cache: str = "runs/.prepared"


class TokenizerSection(Section):
    """How text becomes tokens: trained on the corpus, or loaded."""

    kind: TokenizerKind = "bpe"
    vocab_size: Positive = 8000
    lowercase: bool = False
    train_mb: Positive = 100
    path: str | None = None


class ModelSection(BaseModel):
    """The model: the keys of `LinformerConfig`, which checks their values."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TrainSection(Section):
    """How the model is trained."""

    steps: Positive = 1000
    batch_size: Positive = 16
    accumulate: Positive = 1
    lr: Above0 = 5e-4
    schedule: Schedule = "cosine"
    warmup: Whole = 100
    weight_decay: NotNegative = 0.01
    beta1: Rate = 0.9
    beta2: Rate = 0.98
    clip: NotNegative = 1.0
    label_smoothing: Rate = 0.0
    mask_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    whole_words: bool = False
    bucket: bool = True
    precision: Precision = "float32"
    compile: bool = False
    gradient_checkpointing: bool = False
    fsdp: bool = False
    threads: Whole = 0
    keep_memory: bool = True
    workers: Whole = 0
    log_every: Positive = 20
    eval_every: Positive = 200
    save_every: Positive = 200
    keep: Positive = 2


class EvaluateSection(Section):
    """How the model is scored, while it trains and at the end."""

    batch_size: Positive = 16
    max_examples: Positive | None = None
    beams: Positive = 4
    length_penalty: float = 1.0
    max_new_tokens: Positive = 128


class RunConfig(Section):
    """The whole of a run."""

    task: Task
    run: str
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
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
        if train.label_smoothing and self.task != "translate":
            raise ValueError(
                f"train.label_smoothing belongs to the task 'translate': got task {self.task!r}."
            )
        if train.whole_words and self.task != "mlm":
            raise ValueError(
                f"train.whole_words belongs to the task 'mlm': got task {self.task!r}."
            )
        for name in ("train", "validation", "test"):
            if isinstance(getattr(data, name), Sides) and self.task != "translate":
                raise ValueError(
                    f"data.{name} with a source and a target belongs to the task 'translate': "
                    f"got task {self.task!r}."
                )
        return self
