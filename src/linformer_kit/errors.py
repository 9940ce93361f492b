"""User errors, and the one place where an exception about user input becomes one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class UserError(ValueError):
    """A mistake the user can fix; the message says how. Printed as one line, exit code 2."""


@contextmanager
def user_input(what: str, *, remedy: str = "") -> Iterator[None]:
    """Turn any exception raised while reading one piece of user input into a `UserError`.

    Wrap it around the code that reads or interprets a single file, folder or value, and nothing
    else: inside, an exception of any type is a statement about that input. `what` names the input
    and the rule it breaks ("cannot load the model runs/a/best"), `remedy` says what to do.

    A `UserError` raised inside passes through unchanged, so the innermost, most exact message wins.
    """
    try:
        yield
    except (UserError, BrokenPipeError):  # a closed pipe is not about the input
        raise
    except Exception as error:
        reason = reason_of(error)
        if isinstance(error, OSError) and error.strerror and str(error.filename) in what:
            reason = error.strerror
        message = f"{what}: {reason}"
        if not message.endswith((".", "!", "?")):
            message += "."
        raise UserError(f"{message} {remedy}".rstrip()) from error


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line without a traceback."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, KeyError) and error.args:
        return f"the key {error.args[0]!r} is missing"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if text.endswith(":") and len(lines) > 1:
        text = f"{text} {lines[1]}"
    if len(text) > 300:
        text = text[:297] + "..."
    if isinstance(error, MemoryError):
        return f"not enough memory{f' ({text})' if text else ''}"
    if isinstance(error, (ValueError, OSError)) and text:
        return text
    return f"{type(error).__name__}{f': {text}' if text else ''}"
