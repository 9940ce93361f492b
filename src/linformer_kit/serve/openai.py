"""OpenAI's interface: embeddings, completions, conversations; and Jina's and Cohere's rerank."""

from __future__ import annotations

import base64
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..predict.answers import Options
from .api_errors import ApiError, invalid
from .events import Json, events
from .generation import Sampling
from .schema import ChatBody, CompletionsBody, EmbeddingsBody, RerankBody, parse
from .service import seconds_since

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from .models import ServedModel
    from .requests import Generation
    from .schema import WritingBody
    from .service import Answered, Given, Service


def check_size(model: ServedModel, size: int | None, *, param: str) -> None:
    """Refuse a number of components that the model was not trained for."""
    sizes = model.describe()["matryoshka"]
    full = model.config.hidden_size
    allowed = sorted({*(sizes or ()), full})
    if size is not None and size not in allowed:
        raise invalid(
            f"{param} must be one of {', '.join(map(str, allowed))}, for which {model.name} was "
            f"trained: got {size}.",
            param=param,
        )


async def embeddings(service: Service, http: Request) -> Response:
    """POST /v1/embeddings"""
    body = parse(EmbeddingsBody, await http.body())
    model = service.model(body.model, task="embed")
    check_size(model, body.dimensions, param="dimensions")
    given: Any = body.input
    is_one = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    inputs: list[Given] = [given] if is_one else list(given)
    made = await service.predict(http, model, inputs, Options(size=body.dimensions), None)
    data = [
        {"object": "embedding", "index": place, "embedding": _encoded(vector, body.encoding_format)}
        for place, (answer,) in enumerate(made.answers)
        for vector in [answer["vector"]]
    ]
    return Json(
        {
            "object": "list",
            "data": data,
            "model": model.name,
            **_read(made, http),
        }
    )


def _encoded(vector: list[float], how: str) -> Any:
    if how == "float":
        return vector
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


async def rerank(service: Service, http: Request) -> Response:
    """POST /v1/rerank, as Jina and Cohere have it: the score is the cosine of the vectors."""
    body = parse(RerankBody, await http.body())
    model = service.model(body.model, task="embed")
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    try:
        made = await service.predict(http, model, [body.query, *texts], Options(), None)
    except ApiError as error:
        if error.param is not None and error.param.startswith("input["):
            place = int(error.param[len("input[") : -1])
            error.param = f"documents[{place - 1}]" if place else "query"
        raise
    query, *others = (np.array(answer["vector"]) for (answer,) in made.answers)
    scores = [float(query @ vector) for vector in others]
    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: body.top_n]
    results: list[dict[str, Any]] = [
        {"index": place, "relevance_score": scores[place]} for place in best
    ]
    if body.return_documents:
        results = [{**each, "document": {"text": texts[each["index"]]}} for each in results]
    return Json({"object": "list", "model": model.name, "results": results, **_read(made, http)})


def _read(made: Answered, http: Request) -> dict[str, Any]:
    return {
        "usage": {"prompt_tokens": made.tokens_read, "total_tokens": made.tokens_read},
        "tokens_read": made.tokens_read,
        "tokens_total": made.tokens_total,
        "seconds": seconds_since(http),
    }


@dataclass(frozen=True)
class _Shape:
    """How a text that was written is answered: as a whole, or as one of many chunks."""

    prefix: str
    whole: str
    chunk: str
    of_text: Callable[[str], dict[str, Any]]
    of_piece: Callable[[str], dict[str, Any]]
    first: dict[str, Any] | None = None  # of the first choice of a stream, which has no text

    def choice(self, text: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {**text, "index": 0, "logprobs": None, "finish_reason": reason}


COMPLETION = _Shape(
    prefix="cmpl",
    whole="text_completion",
    chunk="text_completion",
    of_text=lambda text: {"text": text},
    of_piece=lambda text: {"text": text},
)
CHAT = _Shape(
    prefix="chatcmpl",
    whole="chat.completion",
    chunk="chat.completion.chunk",
    of_text=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    of_piece=lambda text: {"delta": {"content": text} if text else {}},
    first={"delta": {"role": "assistant", "content": ""}},
)


async def completions(service: Service, http: Request) -> Response:
    """POST /v1/completions"""
    body = parse(CompletionsBody, await http.body())
    body.check_supported()
    model = service.model(body.model, task="generate")
    (prompt,) = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    most = 16 if body.max_tokens is None else body.max_tokens
    return await _written(service, http, model, prompt, body, most, COMPLETION)


async def chat(service: Service, http: Request) -> Response:
    """POST /v1/chat/completions"""
    body = parse(ChatBody, await http.body())
    body.check_supported()
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid(
            "max_tokens is the old name of max_completion_tokens. Give one of them.",
            param="max_tokens",
        )
    model = service.model(body.model, task="generate")
    prompt = await service.conversation(http, model, [each.plain() for each in body.messages])
    usual = model.predictor.config.evaluate.max_new_tokens
    most = body.max_completion_tokens or body.max_tokens or usual
    return await _written(service, http, model, prompt, body, most, CHAT)


async def _written(
    service: Service,
    http: Request,
    model: ServedModel,
    prompt: str,
    body: WritingBody,
    most: int,
    shape: _Shape,
) -> Response:
    sampling = Sampling(
        max_new_tokens=most,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=stops(body.stop or ()),
    )
    request = await service.generation(http, model, prompt, sampling, None)
    head = {
        "id": f"{shape.prefix}-{secrets.token_hex(12)}",
        "object": shape.chunk if body.stream else shape.whole,
        "created": int(time.time()),
        "model": model.name,
    }
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return events(_chunks(service, http, request, head, shape, usage=usage))
    text, reason = "", None
    async for news in service.written(http, request):
        text, reason = text + news.text, news.finish_reason
    choices = [shape.choice(shape.of_text(text), reason)]
    return Json({**head, "choices": choices, **_cost(http, request)})


async def _chunks(
    service: Service,
    http: Request,
    request: Generation,
    head: dict[str, Any],
    shape: _Shape,
    *,
    usage: bool,
) -> AsyncIterator[dict[str, Any]]:
    if shape.first is not None:
        yield {**head, "choices": [shape.choice(shape.first, None)]}
    async for news in service.written(http, request):
        choices = [shape.choice(shape.of_piece(news.text), news.finish_reason)]
        chunk = {**head, "choices": choices}
        if news.finish_reason is not None:
            cost = _cost(http, request)
            used = cost.pop("usage")
            chunk |= cost
            yield chunk
            if usage:
                yield {**head, "choices": [], "usage": used}
        elif news.text:
            yield chunk


def _cost(http: Request, request: Generation) -> dict[str, Any]:
    reading = request.question.reading
    read, written = reading.tokens_read, request.tokens_written
    return {
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        },
        "tokens_read": read,
        "tokens_total": reading.tokens_total,
        "seconds": seconds_since(http),
    }


def stops(given: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Stop strings, none of them empty."""
    found = (given,) if isinstance(given, str) else tuple(given)
    if not all(found):
        raise invalid("a stop string must not be empty.", param="stop")
    return found
