"""The command `linformer`."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from .exit_codes import STOPPED

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. A user's mistake is one line on stderr and exit code 2."""
    _prepare_streams()
    try:
        from .app import run

        code = run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        sys.exit(f"linformer: the command line needs {package}: pip install 'linformer-kit[cli]'")
    except KeyboardInterrupt:  # before the commands were there
        sys.stderr.write("linformer: interrupted.\n")
        code = STOPPED
    if code == STOPPED and arguments is None:  # this process runs nothing else
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it without a traceback
    _leave(code)


def _prepare_streams() -> None:
    """Let closed streams go nowhere, and bytes of file names that are no text print as escapes.

    A line of standard input that is not UTF-8 is a mistake in this line alone.
    """
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123 - until the end
    elif getattr(sys.stdin, "errors", None) == "strict" and hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="surrogateescape")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell: `linformer runs >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - until the end
        elif getattr(stream, "errors", None) == "strict":
            stream.reconfigure(errors="backslashreplace")


def _leave(code: int) -> NoReturn:
    """End the process; one of several without tearing down the interpreter.

    Gloo's threads may still hold tensors while the interpreter goes, which aborts the process.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        sys.exit(code)
    if code == 0:
        distributed.barrier()  # nobody goes while another still talks to it
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
