"""Reuse of freed memory by the C library.

By default glibc returns a large freed tensor to the system, and the next tensor of its size has to
be cleared by the system again, page by page. With long inputs that is a good part of a step.
PyTorch's allocator for GPUs keeps freed memory; glibc can be told to keep it too.
"""

from __future__ import annotations

import ctypes
import functools

import torch

# From malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


@functools.cache
def reuse_freed_blocks() -> None:
    """Let blocks of rows reuse the memory of earlier blocks. The first fast-path call does this.

    glibc keeps a freed piece that is smaller than the largest piece ever returned to the system, up
    to 32 MB, and up to twice that size in total. One such piece is allocated and freed here, which
    is cheap because it is never written to. Without it, blocks become fast only after the process
    has freed a large tensor for another reason.
    """
    torch.empty(2**25 - 2**14, dtype=torch.uint8, device="cpu")


def keep_memory() -> bool:
    """Let this process keep freed memory for the next allocation.

    This is faster, above all for long inputs; the peak may be higher, because freed pieces may not
    fit the next allocation. Call it once, before the work. It affects the whole process and cannot
    be undone. Returns True if the C library (glibc, so Linux) accepts the setting; otherwise
    nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; on Windows CDLL needs a name
        return False
    heap_only = mallopt(_M_MMAP_MAX, 0)  # freed memory can be kept only in the heap
    never_shrinks = mallopt(_M_TRIM_THRESHOLD, -1)
    return bool(heap_only and never_shrinks)
