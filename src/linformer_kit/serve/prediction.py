"""POST /predict: every task, as JSON or with an uploaded file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from ..config.answer_options import TASKS as EFFECTIVE
from ..predict.answers import Options
from .api_errors import invalid
from .events import Json, events
from .generation import Sampling
from .openai import check_size, stops
from .schema import PredictBody, parse, refused
from .service import seconds_since

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.responses import Response

    from .models import ServedModel
    from .requests import Generation
    from .service import Answered, Given, Service

FORM = "multipart/form-data"
FIELDS = 24  # of a form


async def predict(service: Service, http: Request) -> Response:
    """POST /predict"""
    is_form = http.headers.get("content-type", "").lower().startswith(FORM)
    body = await _form(http) if is_form else parse(PredictBody, await http.body())
    model = service.model(body.model)
    given = _effective(body, model)
    inputs = _inputs(body, model)
    if model.task == "generate":
        return await _generate(service, http, model, inputs, body)
    if model.task == "embed":
        check_size(model, body.size, param="size")
    made = await service.predict(http, model, inputs, Options(**given), body.on_overflow)
    answers = made.answers
    if model.task == "fill":
        asked = [len(question.facts.asked) for question in made.questions]
        answers = [_numbered(*each) for each in zip(answers, asked, strict=True)]
    results = [
        {
            "answers": each,
            "tokens_read": question.reading.tokens_read,
            "tokens_total": question.reading.tokens_total,
            "notes": question.notes(),
        }
        for each, question in zip(answers, made.questions, strict=True)
    ]
    return Json(
        {
            **_head(model),
            "results": results,
            "tokens_read": made.tokens_read,
            "tokens_total": made.tokens_total,
            "seconds": seconds_since(http),
            "seconds_computing": made.seconds_computing,
            "full_attention": _full_attention(model, made),
        }
    )


def _head(model: ServedModel) -> dict[str, Any]:
    return {"model": model.name, "task": model.task, "backend": model.backend}


def _effective(body: PredictBody, model: ServedModel) -> dict[str, Any]:
    """The options that were given; one that has no effect in this task is refused."""
    values = {name: getattr(body, name) for name in body.model_fields_set}
    given = {name for name, value in values.items() if value is not None and value is not False}
    for name in sorted(given - {"model", "input"} - set(model.options)):
        raise invalid(
            f"{name} has no effect with {model.name}, whose task is {model.task!r}. Leave it out. "
            f"It takes {', '.join(model.options)}.",
            param=name,
        )
    for name in ("seed", "top_p"):
        if name in given and not body.temperature:
            raise invalid(
                f"{name} has no effect at temperature 0, where nothing is drawn. Add a "
                "temperature, or leave it out.",
                param=name,
            )
    return {name: getattr(body, name) for name in EFFECTIVE if name in given}


def _inputs(body: PredictBody, model: ServedModel) -> list[Given]:
    given = body.input
    if model.predictor.tokenizer is None:
        if isinstance(given, str):
            return [given]  # a JSON list of numbers, as in a file
        if not given or isinstance(given[0], str):
            raise invalid("the input must be a list of positions with numbers.", param="input")
        return [json.dumps(given)]
    if isinstance(given, str):
        return [given]
    if not all(isinstance(each, str) for each in given):
        raise invalid(f"{model.name} reads texts: got numbers.", param="input")
    return list(given)  # type: ignore[arg-type]


async def _form(http: Request) -> PredictBody:
    """A file and fields; the file's name is not used."""
    values: dict[str, Any] = {}
    try:
        async with http.form(max_files=1, max_fields=FIELDS) as form:
            for name, value in form.multi_items():
                if isinstance(value, str):
                    values[name] = _from_field(name, value)
                elif name != "file":
                    raise invalid("the part with the file must be named file.", param="file")
                else:
                    values["input"] = _text_of(await value.read())
    except (MultiPartException, HTTPException, FormParserError) as error:
        # Older versions of Starlette let the parser's own error through.
        text = getattr(error, "message", None) or getattr(error, "detail", None) or error
        raise invalid(f"the form cannot be read: {text}") from error
    if "input" not in values:
        raise invalid("the form must have a file named file, or the field input.", param="file")
    try:
        return PredictBody.model_validate(values)
    except ValidationError as error:
        raise refused(error) from error


def _text_of(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(
            f"the file must be text in UTF-8: byte {error.start} is not.", param="file"
        ) from error


def _from_field(name: str, text: str) -> Any:
    """The value of a field: numbers and true or false are written as in JSON, texts as they are."""
    if name in ("model", "input", "on_overflow", "stop"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _numbered(answers: list[dict[str, Any]], masks: int) -> list[dict[str, Any]]:
    """Which mask each answer is for: there are equally many for each."""
    each = len(answers) // masks
    return [{**answer, "mask": place // each} for place, answer in enumerate(answers)]


def _full_attention(model: ServedModel, made: Answered) -> dict[str, Any] | None:
    """An estimate of what full attention over each whole text would have taken."""
    if model.cost is None:
        return None
    ours = full = 0
    for question in made.questions:
        pieces = [len(piece) for piece in question.pieces]
        one, two = model.cost.flops(pieces, max(question.reading.tokens_total, 1))
        ours, full = ours + one, full + two
    seconds = made.seconds_computing * full / max(ours, 1)
    return {"flops": ours, "flops_full": full, "seconds_estimate": seconds}


async def _generate(
    service: Service, http: Request, model: ServedModel, inputs: list[Given], body: PredictBody
) -> Response:
    if len(inputs) != 1:
        raise invalid("one text a request is continued. Send several requests.", param="input")
    wanted = body.max_new_tokens or model.predictor.config.evaluate.max_new_tokens
    sampling = Sampling(
        max_new_tokens=wanted,
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=stops(body.stop or ()),
    )
    request = await service.generation(http, model, inputs[0], sampling, body.on_overflow)
    if body.stream:
        return events(_news(service, http, request))
    text, reason = "", None
    async for news in service.written(http, request):
        text, reason = text + news.text, news.finish_reason
    reading = request.question.reading
    tokens = {"tokens_read": reading.tokens_read, "tokens_total": reading.tokens_total}
    answer = {"text": text, "finish_reason": reason}
    result = {"answers": [answer], **tokens, "notes": request.question.notes()}
    return Json(
        {
            **_head(model),
            "results": [result],
            **tokens,
            "tokens_written": request.tokens_written,
            "seconds": seconds_since(http),
            "seconds_computing": request.seconds_computing,
            "full_attention": None,
        }
    )


async def _news(
    service: Service, http: Request, request: Generation
) -> AsyncIterator[dict[str, Any]]:
    async for news in service.written(http, request):
        if news.text:
            yield {"text": news.text, "tokens": news.tokens}
    reading = request.question.reading
    yield {
        "done": True,
        "finish_reason": news.finish_reason,
        **_head(request.model),
        "tokens_read": reading.tokens_read,
        "tokens_total": reading.tokens_total,
        "tokens_written": request.tokens_written,
        "notes": request.question.notes(),
        "seconds": seconds_since(http),
        "seconds_computing": request.seconds_computing,
    }
