"""One process at a time writes to a run's folder.

The lock is the kernel's (flock), so it ends with the process that holds it: a killed process leaves
its files behind, but no lock.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ..errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".lock"
HOLDER = ".lock-holder"
WAIT = 1.0  # seconds for a process that has just taken the lock to write its name


@contextmanager
def lock_run(folder: Path, *, option: str = "run=...") -> Iterator[None]:
    """Hold the folder, or say which process does. `option` names another folder."""
    lock = FileLock(folder / LOCK)
    holder = folder / HOLDER
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"{folder} is in use by {_name_in(holder)}. Wait until it has ended, stop it, or name "
            f"another folder with {option}"
        ) from None
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _name_in(holder: Path) -> str:
    """Who holds the lock."""
    end = time.monotonic() + WAIT
    while True:
        try:
            who = holder.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            who = ""
        if who or time.monotonic() > end:
            return who or "another process"
        time.sleep(0.02)
