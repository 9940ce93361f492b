"""The memory of this machine, and of a cgroup inside it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from linformer_kit import machine_memory
from linformer_kit.machine_memory import (
    available_memory,
    ran_out_of_memory,
    release_freed_memory,
    require_memory,
    total_memory,
)

GIB = 2**30


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """Write the limits of cgroups, and say which one this process is in."""
    monkeypatch.setattr(machine_memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine_memory, "OWN_CGROUP", tmp_path / "own")

    def write(own: str, limits: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in limits.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


def test_total_is_what_the_system_says(cgroups):
    cgroups("", {})
    assert total_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{GIB}\n"}),
        ("0::/\n", {"memory.max": f"{GIB}\n"}),
        ("5:cpu:/x\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{GIB}\n"}),
    ],
    ids=["parent", "root", "version 1"],
)
def test_a_cgroup_limits_the_total(cgroups, own, limits):
    cgroups(own, limits)
    assert total_memory() == GIB


def test_a_cgroup_without_a_limit_changes_nothing(cgroups):
    cgroups("", {})
    without = total_memory()
    cgroups("0::/a\n", {"a/memory.max": "max\n"})
    assert total_memory() == without


def test_available_is_no_more_than_the_total():
    assert 0 < available_memory() <= total_memory()


def test_it_is_found_without_torch():
    code = (
        "import sys; from linformer_kit.machine_memory import total_memory; total_memory(); "
        "print('torch' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout == "False\n", answer.stderr


def test_what_exceeds_the_machine_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(machine_memory, "total_memory", lambda: 8 * 10**9)
    require_memory("dim=8", 8 * 10**9, remedy="Use less.")
    with pytest.raises(ValueError) as caught:
        require_memory("dim=9", 10**13, remedy="Use less.")
    assert str(caught.value) == (
        "dim=9 needs at least 10,000.0 GB of memory, and this machine has 8.0 GB. Use less."
    )


def test_want_of_memory_is_recognised_whatever_raises_it():
    import numpy as np
    import torch

    for allocate in (lambda: torch.empty(10**14), lambda: np.empty(10**14), lambda: [0] * 10**14):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert ran_out_of_memory(caught.value)
    assert ran_out_of_memory(OSError(12, "Cannot allocate memory"))
    assert not ran_out_of_memory(RuntimeError("shapes differ"))
    assert not ran_out_of_memory(ValueError("not enough memory"))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
def test_gaps_between_blocks_in_use_are_given_back():
    blocks = [bytearray(b"x") * 100_000 for _ in range(1000)]  # too small for pages of their own
    kept = blocks[::50]
    before = _resident()
    del blocks
    assert release_freed_memory()
    assert before - _resident() > 70_000_000
    assert all(block == b"x" * 100_000 for block in kept)
