"""Answers as JSON, and as server-sent events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, StreamingResponse

from .api_errors import api_error_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DONE = "data: [DONE]\n\n"


class Json(JSONResponse):
    """JSON in ASCII: whatever a tokenizer makes of bytes can be sent."""

    def render(self, content: Any) -> bytes:
        return _dumped(content).encode("ascii")


def events(values: AsyncIterator[dict[str, Any]]) -> StreamingResponse:
    """Each value as an event, then [DONE]. An error after the first event is an event too."""

    async def lines() -> AsyncIterator[str]:
        try:
            async for value in values:
                yield f"data: {_dumped(value)}\n\n"
        except Exception as error:
            yield f"data: {_dumped(api_error_of(error).body())}\n\n"
        yield DONE

    return StreamingResponse(
        lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
    )


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
