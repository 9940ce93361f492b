"""OpenAI's interface: embeddings, completions, models."""

from __future__ import annotations

import base64
import secrets
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ..predict.answers import Options
from .api_errors import invalid
from .events import Json, events
from .generation import Sampling
from .schema import CompletionsBody, EmbeddingsBody, parse
from .service import seconds_since

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from .models import ServedModel
    from .requests import Generation
    from .service import Given, Service


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
            "usage": {"prompt_tokens": made.tokens_read, "total_tokens": made.tokens_read},
            "tokens_read": made.tokens_read,
            "tokens_total": made.tokens_total,
            "seconds": seconds_since(http),
        }
    )


def _encoded(vector: list[float], how: str) -> Any:
    if how == "float":
        return vector
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


async def completions(service: Service, http: Request) -> Response:
    """POST /v1/completions"""
    body = parse(CompletionsBody, await http.body())
    body.check_supported()
    model = service.model(body.model, task="generate")
    stop = body.stop or ()
    sampling = Sampling(
        max_new_tokens=16 if body.max_tokens is None else body.max_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=stops(stop),
    )
    (prompt,) = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    request = await service.generation(model, prompt, sampling, None)
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model.name,
    }
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return events(_chunks(service, http, request, head, usage=usage))
    text, reason = "", None
    async for news in service.written(http, request):
        text, reason = text + news.text, news.finish_reason
    return Json({**head, "choices": [_choice(text, reason)], **_cost(http, request)})


async def _chunks(
    service: Service, http: Request, request: Generation, head: dict[str, Any], *, usage: bool
) -> AsyncIterator[dict[str, Any]]:
    async for news in service.written(http, request):
        chunk = {**head, "choices": [_choice(news.text, news.finish_reason)]}
        if news.finish_reason is not None:
            cost = _cost(http, request)
            used = cost.pop("usage")
            chunk |= cost
            yield chunk
            if usage:
                yield {**head, "choices": [], "usage": used}
        elif news.text:
            yield chunk


def _choice(text: str, reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": reason}


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
