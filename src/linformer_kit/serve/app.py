"""The routes."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

import linformer_kit

from . import openai
from .api_errors import ApiError, api_error_of
from .docs_page import docs_page
from .events import Json
from .guard import FORM, JSON, Guard
from .heads import heads
from .prediction import predict
from .schema import (
    ChatBody,
    CompletionsBody,
    EmbeddingsBody,
    HeadsBody,
    PredictBody,
    RerankBody,
)
from .service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pydantic import BaseModel

    from .models import ServedModel
    from .settings import Settings

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
    "json": JSON,
}
ERROR_SCHEMA = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {JSON: {"schema": ERROR_SCHEMA}}}
    for status, text in {
        400: "The request is not valid; the message says why.",
        401: "The token is missing or wrong.",
        403: "The host or the origin is not allowed.",
        404: "There is no such model.",
        408: "The time limit was reached.",
        413: "The body, the tokens or the inputs are beyond a limit.",
        415: "The content type is not one that is read.",
        429: "The queue is full; Retry-After says when to try again.",
        503: "The server is starting or ends.",
    }.items()
}


def _body(kind: type[BaseModel], *, upload: bool = False) -> dict[str, Any]:
    """The body of a route in the schema."""
    schema = kind.model_json_schema(mode="validation")
    content: dict[str, Any] = {JSON: {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    if upload:
        fields = {
            name: value for name, value in schema["properties"].items() if name != "input"
        } | {"file": {"type": "string", "format": "binary", "description": "Text in UTF-8."}}
        form = {"type": "object", "properties": fields, "required": ["file"]}
        content[FORM] = {"schema": form}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        if "$ref" in value:
            return _inlined(known[value["$ref"].rpartition("/")[2]], known)
        return {name: _inlined(inner, known) for name, inner in value.items()}
    return [_inlined(each, known) for each in value] if isinstance(value, list) else value


def create_app(models: dict[str, ServedModel], settings: Settings) -> tuple[FastAPI, Guard]:
    """The routes, and the guard around them, which is the application to run."""
    service = Service(models, settings)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # its warnings have contents

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="linformer serve",
        version=linformer_kit.__version__,
        summary="Models of linformer-kit over HTTP.",
        docs_url=None,  # FastAPI's page loads scripts from another host
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    _add_api(app, service)
    _add_pages(app, service)

    @app.exception_handler(ApiError)
    async def refused(_: Request, error: ApiError) -> Response:
        return Json(error.body(), status_code=error.status, headers=error.headers())

    @app.exception_handler(HTTPException)
    async def not_routed(_: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid")
        text = {
            404: "there is no such route. GET /docs lists the routes.",
            405: "the route has another method. GET /docs lists the routes.",
        }.get(error.status_code, "the request cannot be read.")
        made = ApiError(error.status_code, text, code=code)
        return Json(made.body(), status_code=error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        made = api_error_of(error)
        return Json(made.body(), status_code=made.status)

    guard = Guard(
        app,
        settings=settings,
        metrics=service.metrics,
        retry_after=service.scheduler.seconds_queued,
    )
    return app, guard


def _add_api(app: FastAPI, service: Service) -> None:
    @app.post(
        "/predict",
        tags=["answers"],
        summary="Answer texts by the task of a model: fill, classify, tag, embed, translate, "
        "generate.",
        openapi_extra=_body(PredictBody, upload=True),
        responses=ERRORS,
    )
    async def predict_route(request: Request) -> Response:
        return await predict(service, request)

    @app.post(
        "/heads",
        tags=["answers"],
        summary="What one head of an encoder attends to, on the beginning of a text: the rows of "
        "E, the window, E, and what each row is made of.",
        openapi_extra=_body(HeadsBody),
        responses=ERRORS,
    )
    async def heads_route(request: Request) -> Response:
        return await heads(service, request)

    @app.post(
        "/v1/embeddings",
        tags=["OpenAI"],
        summary="Vectors of texts, as OpenAI's interface gives them.",
        openapi_extra=_body(EmbeddingsBody),
        responses=ERRORS,
    )
    async def embeddings_route(request: Request) -> Response:
        return await openai.embeddings(service, request)

    @app.post(
        "/v1/completions",
        tags=["OpenAI"],
        summary="The continuation of a text, as OpenAI's interface gives it.",
        openapi_extra=_body(CompletionsBody),
        responses=ERRORS,
    )
    async def completions_route(request: Request) -> Response:
        return await openai.completions(service, request)

    @app.post(
        "/v1/chat/completions",
        tags=["OpenAI"],
        summary="The next message of a conversation, as OpenAI's interface gives it, by a causal "
        "model whose tokenizer has a chat template.",
        openapi_extra=_body(ChatBody),
        responses=ERRORS,
    )
    async def chat_route(request: Request) -> Response:
        return await openai.chat(service, request)

    @app.post(
        "/v1/rerank",
        tags=["answers"],
        summary="The documents that are nearest to a query, by the cosine of their vectors, as "
        "Jina's and Cohere's interfaces give them.",
        openapi_extra=_body(RerankBody),
        responses=ERRORS,
    )
    async def rerank_route(request: Request) -> Response:
        return await openai.rerank(service, request)

    @app.get("/v1/models", tags=["OpenAI"], summary="The models of this server.")
    async def models_route() -> Response:
        found = [model.describe() for model in service.models.values()]
        return Json({"object": "list", "data": found})

    @app.get("/v1/models/{name}", tags=["OpenAI"], summary="One model.")
    async def model_route(name: str) -> Response:
        return Json(service.model(name).describe())

    @app.get("/health", tags=["operation"], summary="Whether the process answers.")
    async def health() -> Response:
        return Json({"status": "ok"})

    @app.get("/ready", tags=["operation"], summary="Whether requests are accepted.")
    async def ready() -> Response:
        if not service.ready:
            raise ApiError(503, "the server is not ready.", code="shutting_down", retry_after=1)
        return Json({"status": "ready", "models": list(service.models)})

    @app.get("/metrics", tags=["operation"], summary="Counters for Prometheus.")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_pages(app: FastAPI, service: Service) -> None:
    """Files that were read once: no request opens one."""
    folder = files(linformer_kit) / "serve" / "page"
    pages = {
        each.name: (each.read_bytes(), TYPES[each.name.rpartition(".")[2]])
        for each in folder.iterdir()
        if each.name.rpartition(".")[2] in TYPES
    }

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        content, kind = pages["index.html"]
        return Response(content, media_type=kind)

    @app.get("/page/{name}", include_in_schema=False)
    async def page(name: str) -> Response:
        if name not in pages:
            raise ApiError(404, "there is no such file.", code="not_found")
        content, kind = pages[name]
        return Response(content, media_type=kind)

    @app.get("/openapi.json", include_in_schema=False)
    async def schema() -> Response:
        return Json(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(docs_page(app.openapi()))
