"""What is freed is kept for what comes next."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")


def new_pages(first: str, work: str, *, after: int) -> int:
    """A process does `first`, and `work` again and again: of so many pages, new to the process, are
    the four times that come after the first `after`.
    """
    lines = [
        "import resource, torch",
        first,
        f"for time in range({after + 4}):",
        f"    if time == {after}:",
        "        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt",
        f"    {work}",
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)",
    ]
    child = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    return int(child.stdout)


@glibc
def test_freed_memory_is_used_again():
    work = "torch.ones(2**24)"  # 64 MB, more than glibc keeps of its own accord
    keep = "from linformer_kit import keep_memory; assert keep_memory()"
    assert new_pages("", work, after=4) > 10_000
    assert new_pages(keep, work, after=4) < 100


@glibc
def test_blocks_use_the_memory_of_the_blocks_before():
    work = "[torch.ones(2**20) for _ in range(6)]"  # 4 MB, 1024 pages each
    # Nearly all of 4 * 6 * 1024 without the library; with it none, or one tensor finds no gap.
    assert new_pages("import linformer_kit", work, after=1) <= 3 * 1024


def test_importing_allocates_on_no_other_device():
    code = "import torch; torch.set_default_device('cuda'); import linformer_kit"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_c_library_is_left_as_it_is(monkeypatch):
    from linformer_kit.core import allocator

    class Nothing:
        pass

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: Nothing())
    assert allocator.keep_memory() is False
