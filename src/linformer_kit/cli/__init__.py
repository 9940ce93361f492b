"""The command `linformer`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

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
    sys.exit(run(arguments))
