"""The memory of a process that computes on a CPU: kept for what comes next, or given back.

A large tensor that is freed goes back to the system, and the next one of its size is cleared by the
system anew, page by page. With long inputs a step spends a good part of its time on that.
PyTorch's allocator for GPUs keeps what is freed; the C library can be told to do so too.
"""

from __future__ import annotations

import ctypes

import torch

# Of malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_blocks() -> None:
    """Let a block of rows find the memory of the block before it, from the first call on.

    glibc keeps a freed piece that is smaller than the largest it has ever given back, up to 32 MB,
    and twice that of them together. So it is shown a large one, which costs nothing: it is never
    written to.
    """
    torch.empty(2**25 - 2**14, dtype=torch.uint8, device="cpu")


def keep_memory() -> bool:
    """Let this process keep the memory that is freed, for whatever is allocated next.

    Faster, and the more so the longer the inputs; the peak may be higher, because a piece that was
    freed may not fit what comes next. Call it once, before the work. It concerns the whole process
    and cannot be taken back. True if the C library (glibc, so Linux) takes the setting; elsewhere
    nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; on Windows CDLL wants a name
        return False
    from_the_heap = mallopt(_M_MMAP_MAX, 0)  # where what is freed can be kept
    never_shrinks = mallopt(_M_TRIM_THRESHOLD, -1)
    return bool(from_the_heap and never_shrinks)
