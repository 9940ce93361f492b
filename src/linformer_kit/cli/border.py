"""How a command ends: the one place where exceptions become one line and an exit code.

What a user can mend (a wrong value, a full disk, too little memory) is one line and exit code 2.
Ctrl-C is a line and exit code 130. A closed pipe (`linformer runs | head -1`) ends the command
without a message. Every other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import NamedTuple

from ..errors import UserError, reason_of
from ..machine_memory import ran_out_of_memory
from .exit_codes import MISTAKE, PIPE_CLOSED, STOPPED
from .ranks import first_to_say

LONGEST = 1200  # characters of a line: an argument may have a hundred thousand

# Errors of the system that a user can do something about, wherever they are raised.
SYSTEM = (
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EMFILE,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
)
# Libraries written in Rust put the number of the system's error into their text.
OS_ERROR = re.compile(r"\(os error (\d+)\)")


class Ending(NamedTuple):
    """An exit code, and the line that is said."""

    code: int
    line: str | None


class Escaped(Exception):  # noqa: N818 - not an error of its own
    """Carries an exception past typer, which would answer some kinds itself."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def ending_of(error: BaseException) -> Ending | None:
    """How to end after an exception; None for a bug."""
    if isinstance(error, UserError):
        return Ending(MISTAKE, str(error))
    if isinstance(error, KeyboardInterrupt):
        return Ending(STOPPED, "interrupted.")
    if isinstance(error, BrokenPipeError):
        return Ending(PIPE_CLOSED, None)
    if ran_out_of_memory(error):
        return Ending(
            MISTAKE,
            f"not enough memory ({reason_of(error)}). Use a smaller batch, shorter inputs or a "
            "smaller model.",
        )
    found = _system_error(error)
    return None if found is None else Ending(MISTAKE, found)


def end(ending: Ending) -> int:
    """Say the line, and return the exit code."""
    if ending.code == PIPE_CLOSED:
        _discard_output()
    elif ending.line is not None and first_to_say(ending.line):
        sys.stderr.write(f"linformer: {one_line(ending.line)}\n")
    return ending.code


def one_line(text: str) -> str:
    """The text without line breaks and control characters, which a path may hold; not endless."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text).strip()
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def _system_error(error: BaseException) -> str | None:
    """What the system refused, in this exception or in the one it comes from."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, OSError) and cause.errno in SYSTEM:
            return f"cannot read or write {cause.filename or 'a file'}: {cause.strerror}."
        found = OS_ERROR.search(str(cause))
        if found and int(found[1]) in SYSTEM:
            return f"cannot read or write a file: {os.strerror(int(found[1]))}."
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def _discard_output() -> None:
    """Let what is still buffered go nowhere: writing it would fail again when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in (sys.stdout, sys.stderr):
            try:
                os.dup2(nowhere, stream.fileno())
            except (OSError, ValueError, AttributeError):
                continue  # not a file: a test's, or closed
    finally:
        os.close(nowhere)
