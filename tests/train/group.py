"""`linformer ...` on several processes with the variables of torchrun, forked like `commands`."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from . import commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass
class Group:
    """The processes of one torchrun, by rank."""

    ranks: list[commands.Command]

    def wait(self) -> list[int]:
        return [rank.wait() for rank in self.ranks]

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()

    @property
    def err(self) -> str:
        return "".join(f"--- rank {n}\n{rank.out}{rank.err}" for n, rank in enumerate(self.ranks))


@contextmanager
def started(
    folder: Path,
    processes: int,
    *arguments: object,
    before: Callable[..., None] | None = None,
    given: object = None,
) -> Iterator[Group]:
    """Start the processes; `before(given)` is called in each of them first.

    The store is in this process, as it is in torchrun's agent.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    folder.mkdir(parents=True, exist_ok=True)
    ranks = []
    for rank in range(processes):
        variables = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes,
            "LOCAL_WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port,
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": 0,
        }  # fmt: skip
        words = {name: str(value) for name, value in variables.items()}
        ranks.append(
            commands.start(
                folder / f"rank-{rank}", *arguments, before=_join, given=(words, before, given)
            )
        )
    group = Group(ranks)
    try:
        yield group
    finally:
        for one in ranks:
            if one.process.is_alive():
                one.kill()
        del store


def run(folder: Path, processes: int, *arguments: object) -> Group:
    """A command on several processes that must succeed on all of them."""
    with started(folder, processes, *arguments) as group:
        codes = group.wait()
    assert codes == [0] * processes, group.err
    return group


def _join(given: Any) -> None:
    variables, before, inner = given
    os.environ.update(variables)
    if before is not None:
        before(inner)
