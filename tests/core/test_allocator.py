"""What is freed is kept for what comes next."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CHILD = """
import resource, torch
from linformer_kit import keep_memory
kept = keep_memory() if {keep} else False
for _ in range(4):
    torch.ones(2**24)  # 64 MB, more than the C library keeps of its own accord
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**24)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def child(*, keep: bool) -> tuple[str, int]:
    """What keep_memory() said, and how many pages were new to the process the last time."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(keep=keep)], capture_output=True, text=True, check=True
    )
    said, pages = done.stdout.split()
    return said, int(pages)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told to")
def test_freed_memory_is_used_again():
    said, pages = child(keep=True)
    assert said == "True"
    assert pages < 100
    assert child(keep=False)[1] > 10 * max(pages, 1)


def test_another_c_library_is_left_as_it_is(monkeypatch):
    from linformer_kit.core import allocator

    class Nothing:
        pass

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: Nothing())
    assert allocator.keep_memory() is False
