"""Where a server listens, and its limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ..errors import UserError

MB = 2**20
SHORTEST_TOKEN = 16  # characters


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits are on by default; each is a clear 4xx for the client.

    max_body: bytes of a request.
    max_tokens: tokens of a request, read or not.
    max_new_tokens: tokens that a request may have written.
    max_inputs: texts of a request.
    time_limit: seconds from the arrival of a request to the end of its answer.
    body_limit: seconds in which the header of a request must have been sent, and then its body.
    queue: requests that are accepted and not answered yet.
    tokens_per_batch, deadline: tokens and seconds of a batch, at most, where it is more than one
    piece of text. After that the queue is looked at again.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    max_body: int = 16 * MB
    max_tokens: int = 1_000_000
    max_new_tokens: int = 100_000
    max_inputs: int = 2048
    time_limit: float = 300.0
    body_limit: float = 30.0
    queue: int = 256
    tokens_per_batch: int = 16_384
    deadline: float = 0.25

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise UserError(
                f"a token must have at least {SHORTEST_TOKEN} characters: got {len(self.token)}. "
                "Make one with: openssl rand -hex 24"
            )
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UserError("a token must have printable ASCII characters only.")
        if self.token is not None and self.token != self.token.strip():
            raise UserError(
                "a token must not begin or end with a space, which HTTP removes from headers. Give "
                "it without."
            )
        if self.token is None and not is_loopback(self.host):
            raise UserError(
                f"--host {self.host} can be reached from other machines, which needs a token. Set "
                "LINFORMER_TOKEN or --token, or leave out --host."
            )


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
