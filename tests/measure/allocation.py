"""Works of known size, for the child processes of test_memory.py."""

from __future__ import annotations

import os
import signal

import torch

from linformer_kit.measure.memory import Work


def tensors(*, prepared: int, used: int) -> Work:
    """Prepare a tensor of `prepared` bytes, then use two of `used` bytes, one after the other."""

    def prepare():
        kept = torch.ones(prepared, dtype=torch.uint8)

        def run():
            for _ in range(2):
                torch.ones(used, dtype=torch.uint8)
            return kept

        return run

    return Work(warm_up=lambda: torch.ones(2 * used, dtype=torch.uint8), prepare=prepare)


def more_than_there_is() -> Work:
    return Work(warm_up=lambda: None, prepare=lambda: lambda: torch.empty(2**60, dtype=torch.uint8))


def killed() -> Work:
    """What the kernel does to a process when memory runs out."""
    return Work(warm_up=lambda: None, prepare=lambda: lambda: os.kill(os.getpid(), signal.SIGKILL))


def broken() -> Work:
    raise KeyError("no such thing")


def endless() -> Work:
    return Work(warm_up=lambda: signal.pause(), prepare=lambda: lambda: None)
