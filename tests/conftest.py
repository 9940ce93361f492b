"""For all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs that tests start, even where it is ignored here.

    A shell has what it runs in the background ignore it, and children inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
