"""Freed memory is reused."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Before 2.38, glibc's aligned allocation leaves its remainder in a cache of seven entries, next to
# the block: the first seven freed blocks are too small for the next one, and are not reused.
SETTLED = 12

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")


def new_pages(first: str, work: str, *, after: int) -> int:
    """The page faults of four repetitions of `work` in a new process, after `first` and `after`
    other repetitions.
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
    work = "torch.ones(2**24)"  # 64 MB, more than glibc keeps by default
    keep = "from linformer_kit import keep_memory; assert keep_memory()"
    assert new_pages("", work, after=4) > 10_000
    assert new_pages(keep, work, after=SETTLED) < 100


@glibc
def test_blocks_use_the_memory_of_the_blocks_before():
    work = "[torch.ones(2**20) for _ in range(6)]"  # 4 MB, 1024 pages each
    reuse = "from linformer_kit.core.cpu.allocator import reuse_freed_blocks; reuse_freed_blocks()"
    # All of 4 * 6 * 1024 where they are not reused; otherwise none, or one tensor finds no gap.
    assert new_pages(reuse, work, after=SETTLED // 4) <= 3 * 1024


def test_the_allocator_is_set_by_the_first_fast_path_call_and_not_by_the_import():
    lines = [
        "import torch",
        "from linformer_kit import LinformerDecoder, LinformerEncoder",
        "from linformer_kit.core.cpu.allocator import reuse_freed_blocks",
        "encoder = LinformerEncoder(dim=8, depth=1, num_heads=2, max_length=4, k=2)",
        "print(reuse_freed_blocks.cache_info().currsize)",
        "encoder(torch.randn(1, 4, 8))",
        "print(reuse_freed_blocks.cache_info().currsize)",
    ]
    child = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert child.stdout.split() == ["0", "1"]


def test_importing_allocates_on_no_other_device():
    code = "import torch; torch.set_default_device('cuda'); import linformer_kit.core.encoder"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_another_c_library_is_left_as_it_is(monkeypatch):
    from linformer_kit.core.cpu import allocator

    class Nothing:
        pass

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: Nothing())
    assert allocator.keep_memory() is False
