"""Real servers on loopback, in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn

from linformer_kit.serve.app import create_app
from linformer_kit.serve.server import configured
from linformer_kit.serve.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS = re.compile(r"serving on (http://\S+)")
ENDED = re.compile(r"ended: ([\d,]+) requests? accepted, ([\d,]+) answered, ([\d,]+) given up")


def client_of(url: str, **options: Any) -> httpx.Client:
    """Without certificates, which take long to read."""
    return httpx.Client(base_url=url, timeout=60, trust_env=False, verify=False, **options)


class Server:
    """`linformer serve` with these arguments."""

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        program: tuple[str, ...] = ("-m", "linformer_kit.cli"),
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        )
        self.lines: list[str] = []
        self.url = ""
        self._up = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._up.wait(300) or not self.url:
            self.process.kill()
            raise RuntimeError("".join(self.lines))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := ADDRESS.search(line):
                self.url = found[1]
                self._up.set()
        self._up.set()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def client(self, **options: Any) -> httpx.Client:
        return client_of(self.url, **options)

    def terminate(self, *, within: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(within)
        self._reader.join(5)
        return code

    def counts(self) -> tuple[int, int, int]:
        """Accepted, answered and given up, as the server says when it has ended."""
        found = ENDED.search(self.said)
        assert found, self.said
        accepted, answered, given_up = (int(text.replace(",", "")) for text in found.groups())
        return accepted, answered, given_up


class Local:
    """The same server in a thread of this process, which need not import everything again."""

    def __init__(self, models: dict[str, Any], settings: Settings) -> None:
        _, self.guard = create_app(models, settings)
        self._server = uvicorn.Server(configured(self.guard, settings))
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)  # as server.py says
        self._socket.bind((settings.host, 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )
        self._thread.start()
        wait_for(lambda: self._server.started, seconds=120)

    def client(self, **options: Any) -> httpx.Client:
        return client_of(self.url, **options)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        self._socket.close()


@contextmanager
def local(models: dict[str, Any], **settings: Any) -> Iterator[Local]:
    started = Local(models, Settings(**settings))
    try:
        yield started
    finally:
        started.stop()


@contextmanager
def serving(*arguments: str, **options: Any) -> Iterator[Server]:
    server = Server(*arguments, **options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.terminate()


def wait_for(condition: Any, *, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
