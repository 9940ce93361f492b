"""What every request passes: host, origin, token, limits of body and queue; headers; the log.

The body is read here, within its limits, before a route sees the request. The log has the route,
the status and the time, never what was sent or answered.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import re
import time
from typing import TYPE_CHECKING, Any

from .api_errors import ApiError, api_error_of, invalid, late, too_large
from .settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from .metrics import Metrics
    from .settings import Settings

    Message = dict[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

LOG = logging.getLogger("linformer_kit.serve")
OPEN_PATHS = ("/", "/docs", "/openapi.json", "/health", "/ready")
OPEN_FOLDER = "/page/"
JSON, FORM = "application/json", "multipart/form-data"
CONTENT_TYPES = {
    "/v1/embeddings": (JSON,),
    "/v1/completions": (JSON,),
    "/v1/chat/completions": (JSON,),
    "/v1/rerank": (JSON,),
    "/predict": (JSON, FORM),
    "/heads": (JSON,),
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
ONCE = ("authorization", "content-type", "host", "origin")  # headers that are read here
HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
DISCARDED = 4  # times the largest body: bytes of a refused request that are still received
DISCARDING = 5.0  # seconds for that
BODIES = 8  # times the largest body: bytes that are accepted and not answered yet
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; form-action 'none'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """An ASGI middleware around the routes."""

    def __init__(
        self,
        app: Any,
        *,
        settings: Settings,
        metrics: Metrics,
        retry_after: Callable[[], float],
    ) -> None:
        self.app = app
        self.settings = settings
        self.metrics = metrics
        self.retry_after = retry_after
        self.accepted = 0  # of requests with a body: all, and those that are not answered
        self.unanswered = 0
        self.finished = 0
        self._bytes = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        body = _Body(receive)
        begin = time.monotonic()
        scope["state"] = {**scope.get("state", {}), "begin": begin}
        try:
            await self._passed(scope, body, answer)
        except ApiError as error:
            # A connection that is closed with unread bytes is reset, and the answer is lost.
            whole = await body.discard(DISCARDED * self.settings.max_body)
            await answer.error(error, close=error.close or not whole)
        except asyncio.CancelledError:  # raised again, it would be logged with a traceback
            if answer.status is None and not body.gone:
                await answer.error(_ending(), close=True)
        except Exception as error:  # a client that gets no answer learns nothing
            refused = api_error_of(error)
            if refused.status == 500:
                LOG.error("%s in %s", type(error).__name__, _place(error))
            if answer.status is None:
                await answer.error(refused, close=True)
        finally:
            self._log(scope, answer, time.monotonic() - begin)

    async def _passed(self, scope: Any, body: _Body, answer: _Answer) -> None:
        headers = _headers(scope)
        path = scope["path"]
        self._check_host(headers)
        self._check_origin(headers)
        is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
        if self.settings.token is not None and not is_open:
            self._check_token(headers)
        if scope["method"] != "POST" or path not in CONTENT_TYPES:
            await self.app(scope, body.receive, answer.send)
            return
        _check_content_type(path, headers)
        size = self._announced(headers)
        self._admit(size)
        try:
            content = await self._content(body)
            await self.app(scope, _replayed(content, body.receive), answer.send)
            self.finished += 1
        finally:
            self.unanswered -= 1
            self._bytes -= size
            self.metrics.accepted.set(self.unanswered)

    def _check_host(self, headers: dict[str, bytes]) -> None:
        """Without a token: refuse names that a foreign page may point to this machine."""
        if self.settings.token is not None:
            return
        host = _host_of(headers.get("host", b""))
        if host is None or not (is_loopback(host) or host == self.settings.host):
            raise ApiError(
                403,
                "this server answers to the names of this machine only, such as 127.0.0.1 and "
                "localhost. Start it with a token to use another name.",
                code="host_not_allowed",
            )

    def _check_origin(self, headers: dict[str, bytes]) -> None:
        """Refuse requests that a page of another site makes."""
        origin = headers.get("origin")
        if origin is None:
            return
        scheme, _, host = origin.lower().partition(b"://")
        if scheme not in (b"http", b"https") or host != headers.get("host", b"").lower():
            raise ApiError(
                403, "requests of pages of other sites are refused.", code="origin_not_allowed"
            )

    def _check_token(self, headers: dict[str, bytes]) -> None:
        kind, _, given = headers.get("authorization", b"").partition(b" ")
        expected = (self.settings.token or "").encode()
        right = hmac.compare_digest(given.strip(), expected)
        if not right or kind.lower() != b"bearer":
            raise ApiError(
                401,
                "this server needs its token: send the header 'Authorization: Bearer TOKEN'.",
                code="invalid_token",
            )

    def _announced(self, headers: dict[str, bytes]) -> int:
        """Bytes of the body: as announced, else as many as there may be."""
        text = headers.get("content-length")
        if text is None:
            return self.settings.max_body
        size = int(text) if text.isdigit() and len(text) < 19 else self.settings.max_body + 1
        if size > self.settings.max_body:
            raise self._body_too_large()
        return size

    def _body_too_large(self) -> ApiError:
        return too_large(
            f"a request must have at most {self.settings.max_body:,} bytes. Send less, or start "
            "the server with a larger --max-body-mb.",
            code="body_too_large",
        )

    def _admit(self, size: int) -> None:
        full = self.unanswered >= self.settings.queue
        if full or self._bytes + size > BODIES * self.settings.max_body:
            seconds = min(max(1, math.ceil(self.retry_after())), 600)
            raise ApiError(
                429,
                f"the queue of this server is full ({self.unanswered} requests). Try again after "
                f"{seconds} seconds.",
                code="queue_full",
                retry_after=seconds,
            )
        self.accepted += 1
        self.unanswered += 1
        self._bytes += size
        self.metrics.accepted.set(self.unanswered)

    async def _content(self, body: _Body) -> bytes:
        parts: list[bytes] = []
        size = 0

        async def read() -> None:
            nonlocal size
            async for part in body.parts():
                parts.append(part)
                size += len(part)
                if size > self.settings.max_body:
                    raise self._body_too_large()

        try:
            await asyncio.wait_for(read(), self.settings.body_limit)
        except TimeoutError as error:
            body.stalled = True
            raise late(self.settings.body_limit) from error
        return b"".join(parts)

    def _log(self, scope: Any, answer: _Answer, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "other"
        status = answer.status or 499
        self.metrics.answers.labels(route, status).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        method = scope["method"] if scope["method"] in METHODS else "other"
        LOG.info("%s %s %d %.3f s", method, route, status, seconds)


class _Body:
    """What a client sends."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.whole = False  # whether all of it was received
        self.stalled = False  # whether there is no sense in waiting for the rest
        self.gone = False  # whether the client closed the connection

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.whole = True
        self.gone = self.gone or message["type"] == "http.disconnect"
        return message

    async def parts(self) -> AsyncIterator[bytes]:
        """As they come; cancelled if the client goes."""
        while not self.whole:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise asyncio.CancelledError
            yield message.get("body", b"")

    async def discard(self, most: int) -> bool:
        """Receive the rest; False if it is too much or does not come."""

        async def read() -> bool:
            left = most
            async for part in self.parts():
                left -= len(part)
                if left < 0:
                    return False
            return True

        if self.stalled:
            return False
        try:
            return await asyncio.wait_for(read(), DISCARDING)
        except TimeoutError:
            return False


class _Answer:
    """What is sent, with the headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", []), *encoded(HEADERS)]}
        await self._send(message)

    async def error(self, error: ApiError, *, close: bool) -> None:
        headers, body = error_response(error, close=close)
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


def error_response(error: ApiError, *, close: bool) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The headers and the body of an error, without those that every answer has."""
    body = json.dumps(error.body()).encode()
    headers = {
        "content-type": JSON,
        "content-length": str(len(body)),
        **({"connection": "close"} if close else {}),
        **{name.lower(): value for name, value in error.headers().items()},
    }
    return encoded(headers), body


def encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


def _ending() -> ApiError:
    return ApiError(
        503, "the server ends before the answer is there.", code="shutting_down", retry_after=1
    )


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body at once, then whatever comes: that the client goes."""
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


def _check_content_type(path: str, headers: dict[str, bytes]) -> None:
    given = headers.get("content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if given not in CONTENT_TYPES[path]:
        raise ApiError(
            415,
            f"the content type must be {' or '.join(CONTENT_TYPES[path])}: got "
            f"{ascii(given[:100]) if given else 'none'}. With curl: "
            "-H 'content-type: application/json'.",
            code="unsupported_media_type",
        )


def _headers(scope: Any) -> dict[str, bytes]:
    """The headers of a request; an ApiError where they can be read in two ways."""
    headers: dict[str, bytes] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1")
        if name in headers and name in ONCE:
            raise invalid(f"the header {name} must be there once: got several.")
        headers[name] = value
    if "content-length" in headers and "transfer-encoding" in headers:
        raise ApiError(
            400,
            "a request has Content-Length or Transfer-Encoding, not both, because servers "
            "disagree on where it ends. Leave one out.",
            code="invalid_request",
            close=True,
        )
    return headers


def _host_of(header: bytes) -> str | None:
    """The name in a Host header, without the port."""
    found = HOST.fullmatch(header.decode("latin-1"))
    return found[1].strip("[]").lower() if found else None


def _place(error: BaseException) -> str:
    """Where an exception was raised, without its message, which may have parts of a text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
