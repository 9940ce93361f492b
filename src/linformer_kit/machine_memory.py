"""How much memory this process may use, whether it ran out, and giving back what was freed. Imports
no torch.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")
UNKNOWN = sys.maxsize  # a system that does not say: nothing is refused by estimate


def total_memory() -> int:
    """Bytes of main memory, or the limit of the process's cgroup if that is lower.

    Swap is not counted. `UNKNOWN` on a system that does not tell.
    """
    return min(_physical_memory(), _cgroup_limit())


def available_memory() -> int:
    """Bytes that can be allocated now without swapping; at most `total_memory()`."""
    available = total_memory()
    for line in _lines(MEMINFO):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            available = min(available, int(value.split()[0]) * 1024)
    return available


def require_memory(what: str, needed: int, *, remedy: str) -> None:
    """Refuse what cannot fit: `needed` is a lower bound, in bytes, of what it allocates."""
    total = total_memory()
    if needed > total:
        raise ValueError(
            f"{what} needs at least {_gigabytes(needed)} of memory, and this machine has "
            f"{_gigabytes(total)}. {remedy}"
        )


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is for want of memory: on a CPU torch raises a plain RuntimeError."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(part in str(error) for part in NO_MEMORY)


def release_freed_memory() -> bool:
    """Return freed pages of the heap to the system; whether the C library can (glibc).

    glibc keeps what is freed between blocks that are in use. Tensors of ever new sizes leave such
    gaps, so that a process that runs for long grows towards the sum of its peaks.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    trim(0)
    return True


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return UNKNOWN


def _cgroup_limit() -> int:
    """The lowest limit of the process's own cgroup and its parents, version 2 or 1."""
    limits = [UNKNOWN]
    for line in _lines(OWN_CGROUP):
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            root, file = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, file = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        folder = root / place.lstrip("/")
        for one in (folder, *folder.parents):
            limits += [int(text) for text in _lines(one / file)[:1] if text.isdigit()]
            if one == root:
                break
    return min(limits)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
