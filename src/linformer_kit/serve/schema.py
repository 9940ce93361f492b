"""What requests may say: every key with its type and range. Unknown keys are refused."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from ..config import limits
from ..config.answer_options import TEMPERATURES, check_temperature
from ..config.on_overflow import OnOverflow  # noqa: TC001  (pydantic reads it)
from ..errors import cut
from .api_errors import ApiError, invalid

Body = TypeVar("Body", bound="RequestBody")
Positive = Annotated[int, Field(ge=1, le=limits.COUNT)]
Temperature = Annotated[float, Field(ge=0.0, le=TEMPERATURES[1]), AfterValidator(check_temperature)]
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Seed = Annotated[int, Field(ge=0, le=limits.SEED)]
Texts = Annotated[list[str], Field(fail_fast=True)]  # the errors of millions would fill the memory
Stop = str | Annotated[Texts, Field(max_length=16)] | None
Token = Annotated[int, Field(ge=0, le=limits.VOCABULARY)]
Tokens = Annotated[list[Token], Field(min_length=1, fail_fast=True)]
Numbers = Annotated[list[float], Field(fail_fast=True)]
Features = Numbers | Annotated[list[Numbers], Field(fail_fast=True)]
KEYS = 1000  # of a JSON object
HEAD_TOKENS = 512  # of a text whose attention is shown: more cannot be told apart in an image


class RequestBody(BaseModel):
    """Types are not converted, apart from whole numbers where a fraction may stand."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    model: Annotated[str | None, Field(description="A name of /v1/models.", max_length=200)] = None


class PredictBody(RequestBody):
    """A text, several, or features; and how to answer. Which keys have an effect: /v1/models."""

    input: Annotated[
        str | Texts | Features,
        Field(description="A text, texts, or a list of positions with numbers (features)."),
    ]
    top: Annotated[int | None, Field(ge=1, le=1000, description="Answers: fill, classify.")] = None
    max_new_tokens: Annotated[
        Positive | None, Field(description="Tokens to write: generate, translate.")
    ] = None
    temperature: Annotated[
        Temperature | None, Field(description="0 takes the likeliest token: generate.")
    ] = None
    top_p: Annotated[
        Probability | None, Field(description="Draw from the likeliest tokens alone: generate.")
    ] = None
    seed: Annotated[Seed | None, Field(description="Of what is drawn: generate.")] = None
    stop: Annotated[Stop, Field(description="Where to end: generate.")] = None
    stream: Annotated[bool, Field(description="Server-sent events: generate.")] = False
    redact: Annotated[bool, Field(description="[label] in place of spans: tag.")] = False
    size: Annotated[
        int | None, Field(ge=1, le=limits.WIDTH, description="First components: embed.")
    ] = None
    on_overflow: Annotated[
        OnOverflow | None, Field(description="For texts longer than the model reads.")
    ] = None


class HeadsBody(RequestBody):
    """A text and a head of an encoder. Which there are: head_view of /v1/models."""

    input: Annotated[str, Field(description="A text; its beginning is looked at.")]
    layer: Annotated[int, Field(ge=1, le=limits.LAYERS, description="From 1.")] = 1
    head: Annotated[int, Field(ge=1, le=limits.WIDTH, description="From 1.")] = 1
    length: Annotated[
        int, Field(ge=8, le=HEAD_TOKENS, description="Tokens of the text, at most.")
    ] = 128


class EmbeddingsBody(RequestBody):
    """OpenAI's request for embeddings."""

    model: Annotated[str, Field(max_length=200)]
    input: str | Texts | Tokens | Annotated[list[Tokens], Field(fail_fast=True)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1, le=limits.WIDTH)] = None
    user: str | None = None


class StreamOptions(BaseModel):
    """OpenAI's options of streams."""

    model_config = ConfigDict(extra="forbid", strict=True)

    include_usage: bool = False


class WritingBody(RequestBody):
    """What OpenAI's two requests for text have in common."""

    model: Annotated[str, Field(max_length=200)]
    max_tokens: Positive | None = None
    temperature: Temperature | None = 1.0
    top_p: Probability | None = 1.0
    seed: Seed | None = None
    stop: Stop = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = 1
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    user: str | None = None

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "n": (None, 1),
        "presence_penalty": (None, 0.0),
        "frequency_penalty": (None, 0.0),
        "logit_bias": (None, {}),
    }  # each key with the values that change nothing

    def check_supported(self) -> None:
        """Refuse what this server does not do, in place of ignoring it."""
        for name, values in self.unsupported.items():
            if getattr(self, name) not in values:
                raise invalid(f"{name} is not supported by this server. Leave it out.", param=name)
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream: true.", param="stream_options")


class CompletionsBody(WritingBody):
    """OpenAI's request for a completion."""

    prompt: str | Annotated[Texts, Field(min_length=1)]
    max_tokens: Positive | None = 16
    best_of: int | None = None
    echo: bool | None = False
    logprobs: int | None = None
    suffix: str | None = None

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        **WritingBody.unsupported,
        "best_of": (None, 1),
        "echo": (None, False),
        "logprobs": (None,),
        "suffix": (None, ""),
    }

    def check_supported(self) -> None:
        super().check_supported()
        if isinstance(self.prompt, list) and len(self.prompt) != 1:
            raise invalid(
                "one prompt a request is answered. Send several requests.", param="prompt"
            )


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """What one side of a conversation said."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    def plain(self) -> dict[str, str]:
        """For the template of a tokenizer."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": self.role, "content": text}


class ChatBody(WritingBody):
    """OpenAI's request for the next message of a conversation."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = False
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        **WritingBody.unsupported,
        "logprobs": (None, False),
        "tools": (None, []),
        "response_format": (None, {"type": "text"}),
    }


class Document(BaseModel):
    """A text to rank."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str


class RerankBody(RequestBody):
    """Jina's and Cohere's request for the documents that are nearest to a query."""

    model: Annotated[str, Field(max_length=200)]
    query: str
    documents: Annotated[list[str | Document], Field(min_length=1, fail_fast=True)]
    top_n: Annotated[Positive | None, Field(description="Results, by default all.")] = None
    return_documents: Annotated[bool, Field(description="With their texts.")] = False


def parse(kind: type[Body], body: bytes) -> Body:
    """A body of JSON; an ApiError says what is wrong with it and never repeats a text."""
    try:
        values = from_json(body)
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}"[:200]) from error
    if not isinstance(values, dict):
        raise invalid("the body must be a JSON object.")
    _check_objects(values)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise refused(error) from error


def _check_objects(value: dict[str, Any] | list[Any]) -> None:
    """Refuse what has far more keys than any request: each unknown one would be an error."""
    if isinstance(value, dict) and len(value) > KEYS:
        raise invalid(f"a JSON object may have {KEYS:,} keys: got {len(value):,}.")
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, (dict, list)):
            _check_objects(each)


def refused(error: ValidationError) -> ApiError:
    """The first mistakes, by their places."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    places: dict[str, str] = {}
    for each in found:
        name = ascii(str(each["loc"][0]))[1:-1] if each["loc"] else "body"
        places.setdefault(name, each["msg"].removeprefix("Value error, "))
    param = next(iter(places))
    shown = "; ".join(f"{cut(name)}: {text}" for name, text in list(places.items())[:3])
    return invalid(shown[:500], param=cut(param))
