"""User errors, and the one place where an exception about user input becomes one."""

from __future__ import annotations

import difflib
import reprlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

Word = TypeVar("Word", bound=str)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


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
    text = cut(text, 300)
    if isinstance(error, MemoryError):
        return f"not enough memory{f' ({text})' if text else ''}"
    if isinstance(error, (ValueError, OSError)) and text:
        return text
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def cut(text: str, most: int = 60) -> str:
    """The beginning of a text that may be long."""
    return text if len(text) <= most else text[: most - 3] + "..."


def shown(value: object) -> str:
    """A value as a message says it: short, in one line, with its type where that is not plain."""
    if isinstance(value, int) and abs(value).bit_length() > 64:
        return f"about {'-' if value < 0 else ''}2**{abs(value).bit_length() - 1}"
    text = " ".join(_SHORT.repr(value).split())
    if value is None or isinstance(value, bool | int | float):
        return text
    return f"{text} ({type(value).__name__})"


def listed(names: Collection[str], most: int = 5, *, form: Callable[[str], str] = str) -> str:
    """The first of many names, each of them short."""
    first = [form(cut(str(name))) for name, _ in zip(names, range(most), strict=False)]
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(first) + more


def one_of(name: str, value: object, allowed: Collection[Word]) -> Word:
    """The value, if it is a known word; otherwise the nearest known one is suggested."""
    for word in allowed:
        if word == value:
            return word
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(f"{name} must be one of {', '.join(allowed)}: got {shown(value)}.{hint}")
