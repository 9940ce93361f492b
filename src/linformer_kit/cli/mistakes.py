"""A user's mistake is told in one line; a traceback is for our own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def users_mistakes(
    kinds: tuple[type[Exception], ...] = (ValueError, TypeError, OSError),
) -> Iterator[None]:
    """Wrap this around checks of what the user gave, and the use of files the user named."""
    try:
        yield
    except kinds as error:
        if isinstance(error, OSError) and error.strerror is not None:
            where = f" {error.filename}" if error.filename else ""
            raise UserError(f"cannot write{where}: {error.strerror}") from error
        raise UserError(str(error)) from error
