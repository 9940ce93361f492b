"""Processes that run functions together as the ranks of one gloo group."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

TIMEOUT = 300.0  # seconds that a call may take


class Ranks:
    """`size` processes, started on first use. `run` calls a function of a module on all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        for rank in range(self.size):
            here, there = context.Pipe()
            arguments = (rank, self.size, store, there)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """function(*args, **kwargs) on every rank; what each returned. Raises what any raised.

        A rank that fails leaves others waiting for it, so all are then started again.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args, kwargs))
        answers: dict[int, Any] = {}
        while len(answers) < self.size:
            waiting = [p for rank, p in enumerate(self._pipes) if rank not in answers]
            failed = {rank: text for rank, (ok, text) in answers.items() if not ok}
            ready = cast("list[Connection]", wait(waiting, 3.0 if failed else TIMEOUT))
            if not ready:
                self.close()
                raise AssertionError(
                    "\n".join(f"rank {rank}: {text}" for rank, text in failed.items())
                    or f"no answer in {TIMEOUT} s"
                )
            for pipe in ready:
                answers[self._pipes.index(pipe)] = pipe.recv()
        failed = {rank: text for rank, (ok, text) in answers.items() if not ok}
        if failed:
            raise AssertionError("\n".join(f"rank {rank}: {text}" for rank, text in failed.items()))
        return [answers[rank][1] for rank in range(self.size)]

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        if self._processes:
            self._folder.cleanup()
        self._pipes, self._processes = [], []


def _work(rank: int, size: int, store: str, pipe: Connection) -> None:
    import faulthandler
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    faulthandler.enable()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=300),
    )
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, function(*args, **kwargs)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
