"""Errors of requests, in the JSON shape of OpenAI's interface."""

from __future__ import annotations

from typing import Any

from ..errors import UserError, reason_of
from ..machine_memory import ran_out_of_memory

TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}


class ApiError(Exception):
    """A request that is not answered: the status, and what is said to the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.close = close  # the connection, after the answer

    def body(self) -> dict[str, Any]:
        """The JSON that is sent."""
        kind = TYPES.get(self.status, "invalid_request_error")
        if self.status > 500:
            kind = TYPES[500]
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def invalid(message: str, *, param: str | None = None) -> ApiError:
    """A mistake in a request."""
    return ApiError(400, message, code="invalid_request", param=param)


def too_large(message: str, *, code: str, param: str | None = None) -> ApiError:
    """A request beyond a limit."""
    return ApiError(413, message, code=code, param=param)


def time_is_up(seconds: float) -> ApiError:
    """A request that took longer than it may."""
    return ApiError(
        408,
        f"the answer was not there after {seconds:g} seconds, the limit of this server. Send "
        "less, or start the server with a larger --time-limit.",
        code="time_limit",
    )


def late(seconds: float) -> ApiError:
    """A request that did not arrive in time."""
    return ApiError(
        408, f"the request was not complete after {seconds:g} seconds.", code="time_limit"
    )


def api_error_of(error: BaseException, *, param: str | None = None) -> ApiError:
    """What a client is told about an exception: the reason if it is its own, else none."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return invalid(str(error).replace("--on-overflow", "on_overflow"), param=param)
    if ran_out_of_memory(error):
        return too_large(
            f"the server has not enough memory for this request ({reason_of(error)}). Send a "
            "shorter text.",
            code="too_many_tokens",
        )
    return ApiError(500, "the server failed on this request.", code="internal_error")
