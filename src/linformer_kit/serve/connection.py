"""A connection as bytes: how long a request may take to arrive, and what is no HTTP.

uvicorn waits without end for the header of a request, and answers what it cannot read as plain
text. The guard sees neither: it begins where a request has a header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from .api_errors import ApiError, invalid, late
from .guard import HEADERS, encoded, error_response

if TYPE_CHECKING:
    import asyncio


def connections(limit: float) -> type[H11Protocol]:
    """The protocol of a server whose requests must arrive within `limit` seconds."""

    class Connection(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """One timer from the first byte on, however slowly others follow."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._unwatch()  # the guard limits the body
            elif self._late is None and not self.transport.is_closing():
                self._late = self.loop.call_later(limit, self._give_up)

        def _unwatch(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _give_up(self) -> None:
            unread, _ = self.conn.trailing_data
            if self.conn.our_state is h11.IDLE and unread:
                self._refuse(late(limit))
            self.transport.close()

        def send_400_response(self, msg: str) -> None:
            """What h11 cannot read, at any place of a request."""
            self._refuse(invalid("the request is not valid HTTP. Send it with an HTTP client."))
            self.transport.close()

        def _refuse(self, error: ApiError) -> None:
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                return  # an answer has begun
            headers, body = error_response(error, close=True)
            events: tuple[Any, ...] = (
                h11.Response(
                    status_code=error.status,
                    headers=[*headers, *encoded(HEADERS)],
                    reason=STATUS_PHRASES[error.status],
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
            if self.cycle is not None:
                self.cycle.disconnected = True  # its route has nobody to answer any more

    return Connection
