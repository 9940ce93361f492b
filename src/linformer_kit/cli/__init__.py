"""The command `linformer`."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. A user's mistake is one line on stderr and exit code 2."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("typer", "rich"):
            raise
        sys.exit(f"linformer: the command line needs {package}: pip install 'linformer-kit[cli]'")
    _leave(run(arguments))


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
