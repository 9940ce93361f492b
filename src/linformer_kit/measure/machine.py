"""What a measurement was made on: machine, versions, commit, seed and time."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import linformer_kit

from ..machine_memory import UNKNOWN, available_memory

PEERS = ("linformer", "linformer-pytorch", "performer-pytorch", "nystrom-attention", "transformers")


def describe(*, seed: int, threads: int) -> dict[str, object]:
    """The header of every record."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": _memory(),
        "threads": threads,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "linformer-kit": linformer_kit.__version__,
        **{peer: version_of(peer) for peer in PEERS},
        "commit": _commit(),
        "seed": seed,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on every system
        return None


def free_memory() -> int | None:
    """Available memory in bytes; None if unknown."""
    available = available_memory()
    return None if available == UNKNOWN else available


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of this source tree, "-dirty" if files differ from it; None outside a checkout.

    An installed package may lie inside somebody else's repository, whose commit says nothing.
    """
    package = Path(linformer_kit.__file__).parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "linformer_kit" != package:
        return None
    return _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True
        )
    except OSError:  # no git
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None
