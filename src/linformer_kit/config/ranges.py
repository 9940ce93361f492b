"""The types of values in a configuration, each with its range."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from . import limits


class Section(BaseModel):
    """Unknown keys are refused, types are not converted, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _one_line(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise ValueError("must have no control characters")
    return text


Text = Annotated[str, Field(max_length=limits.TEXT), AfterValidator(_one_line)]

Whole = Annotated[int, Field(ge=0, le=limits.COUNT)]
Positive = Annotated[int, Field(ge=1, le=limits.COUNT)]
Batch = Annotated[int, Field(ge=1, le=limits.BATCH)]
Length = Annotated[int, Field(ge=1, le=limits.LENGTH)]
Width = Annotated[int, Field(ge=1, le=limits.WIDTH)]
Layers = Annotated[int, Field(ge=1, le=limits.LAYERS)]
Vocabulary = Annotated[int, Field(ge=1, le=limits.VOCABULARY)]
Megabytes = Annotated[int, Field(ge=1, le=limits.MEGABYTES)]
Beams = Annotated[int, Field(ge=1, le=limits.BEAMS)]
Threads = Annotated[int, Field(ge=0, le=limits.THREADS)]
Workers = Annotated[int, Field(ge=0, le=limits.WORKERS)]
Seed = Annotated[int, Field(ge=0, le=limits.SEED)]

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0)]
ShareAbove0 = Annotated[float, Field(gt=0.0, lt=1.0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=100.0)]
Strength = Annotated[float, Field(ge=0.0, le=1e6)]  # of weight decay and of gradient clipping
Penalty = Annotated[float, Field(ge=-100.0, le=100.0)]
Epsilon = Annotated[float, Field(gt=0.0, le=1.0)]
Deviation = Annotated[float, Field(ge=0.0, le=100.0)]
