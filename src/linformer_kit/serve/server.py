"""Run the server until it is told to end; what was accepted is finished first."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

import uvicorn

from ..errors import UserError
from ..measure import quantities
from .app import create_app
from .connection import connections

if TYPE_CHECKING:
    from collections.abc import Callable

    from .guard import Guard
    from .models import ServedModel
    from .settings import Settings

# Seconds after which a thread that waits for the interpreter gets it. The model's thread gives it
# up at every operator, and with Python's 5 ms waits for the event loop again and again.
SWITCH_INTERVAL = 0.0005
THREADS = "linformer-"  # how the names of threads begin that may be left alone
GRACE = 10.0  # seconds beyond the time limit of a request, to end


def run_server(
    models: dict[str, ServedModel],
    settings: Settings,
    *,
    say: Callable[[str], None],
    log_requests: bool = True,
) -> None:
    """Serve until SIGTERM or Ctrl-C: no new connections, answers to all accepted requests, end."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    _, guard = create_app(models, settings)
    if log_requests:
        _log_to_stderr()
    listening = _bound(settings)
    host, port = listening.getsockname()[:2]
    server = _Server(
        configured(guard, settings), lambda: say(f"serving on http://{_shown(host)}:{port}")
    )
    # uvicorn raises the signal again when it has ended: an ordinary end needs no other one.
    before = {each: signal.signal(each, _ended) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listening])
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        listening.close()
    say(
        f"ended: {quantities.count(guard.accepted, 'request')} accepted, {guard.finished:,} "
        "answered, "
        f"{guard.accepted - guard.finished:,} given up by the client or refused."
    )
    if any(each.name.startswith(THREADS) for each in threading.enumerate()):
        _exit_at_once()


def _exit_at_once() -> None:
    """End the process though a thread still computes what nobody waits for.

    The interpreter would unwind the thread's C++ or Rust, which ends in an abort.
    """
    atexit._run_exitfuncs()  # temporary files
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def configured(guard: Guard, settings: Settings) -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        guard,
        http=connections(settings.body_limit),
        access_log=False,  # it has the query strings; the guard logs
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=int(settings.time_limit + GRACE / 2),
        timeout_keep_alive=30,
        ws="none",
        lifespan="on",
    )


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, listens: Callable[[], None]) -> None:
        super().__init__(config)
        self._listens = listens

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._listens()


def _ended(*_: Any) -> None:
    """The server has ended already."""


def _bound(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; without it answers take 40 ms longer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}. Choose "
            "another --port, or --port 0 for a free one."
        ) from error
    return listening


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _log_to_stderr() -> None:
    log = logging.getLogger("linformer_kit.serve")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
