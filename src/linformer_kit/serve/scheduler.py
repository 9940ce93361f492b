"""What the model computes next: a fair queue, batches of equal length, one worker thread.

A request is cut into units: pieces of its texts, or slices of a text that is being written. The
queue is start-time fair: a unit starts, on a clock of computing time, where the unit before it of
the same request ends, and the unit with the earliest start is next. So a request waits for what is
being computed and for about as much of each other request as it needs itself, however long
those are.

Units with the same key share a batch, within a budget of tokens and of time (the deadline).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

FIRST_RATE = 20_000.0  # tokens a second, before anything was measured
MEMORY = 0.8  # of the running mean of the rate


class Request(ABC):
    """What a client waits for. `cancelled` may be set by any thread."""

    def __init__(self) -> None:
        self.cancelled = False
        self.finish = 0.0  # on the clock of the scheduler

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """Told once, by the worker, if a unit of it failed."""


class Unit(ABC):
    """A piece of work of a request. Units of the same key may be computed as one batch."""

    start = 0.0  # on the clock of the scheduler

    def __init__(self, request: Request, *, rate: str, tokens: int, key: Hashable = None) -> None:
        self.request = request
        self.rate = rate  # units of one name take about as long a token
        self.tokens = tokens
        self.key = key  # None: alone

    @abstractmethod
    def run(self, batch: Sequence[Unit], pause: Callable[[], bool]) -> Unit | None:
        """Compute the batch, whose first unit this is. A unit is returned if there is more to do.

        `pause` says whether this took as long as it may, which is less if something else waits.
        """


class Scheduler:
    """The queue and the thread that computes."""

    def __init__(
        self,
        *,
        tokens_per_batch: int,
        deadline: float,
        seen: Callable[[Sequence[Unit], float], None] = lambda batch, seconds: None,
    ) -> None:
        self.tokens_per_batch = tokens_per_batch
        self.deadline = deadline
        self._seen = seen
        self._units: list[Unit] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._clock = 0.0
        self._rates: dict[str, float] = {}
        self._thread = threading.Thread(target=self._work, name="linformer-model", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, within: float | None = None) -> None:
        """Compute what is queued, then end the thread.

        After `within` seconds it is left alone: a batch cannot be stopped, and the thread ends with
        the process.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(within)

    def submit(self, units: Sequence[Unit]) -> None:
        """Queue units, those of one request in their order."""
        with self._changed:
            for unit in units:
                request = unit.request
                unit.start = max(self._clock, request.finish)
                request.finish = unit.start + unit.tokens / self._rate(unit)
            self._units += units
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """Units in the queue."""
        return len(self._units)

    def seconds_queued(self) -> float:
        """How long the queue will take, by the rates so far."""
        with self._changed:
            return sum(unit.tokens / self._rate(unit) for unit in self._units)

    def _rate(self, unit: Unit) -> float:
        return self._rates.get(unit.rate, FIRST_RATE)

    def _work(self) -> None:
        while batch := self._next():
            begin = time.monotonic()

            def pause(begin: float = begin) -> bool:
                part = 16 if self._units else 4
                return time.monotonic() - begin > self.deadline / part

            try:
                more = batch[0].run(batch, pause)
            except BaseException as error:  # whatever it was, the server keeps running
                more = None
                for request in {unit.request for unit in batch}:
                    request.cancelled = True
                    request.failed(error)
            seconds = time.monotonic() - begin
            self._learn(batch, seconds)
            self._seen(batch, seconds)
            if more is not None and not more.request.cancelled:
                more.request.finish = batch[0].start + seconds
                self.submit([more])

    def _next(self) -> list[Unit]:
        """The next batch; none at the end."""
        with self._changed:
            while True:
                self._units = [unit for unit in self._units if not unit.request.cancelled]
                if self._units:
                    break
                if self._stopping:
                    return []
                self._changed.wait()
            first = min(self._units, key=lambda unit: unit.start)
            self._clock = max(self._clock, first.start)
            batch, tokens = [first], first.tokens
            if first.key is not None:
                budget = min(self.tokens_per_batch, self.deadline * self._rate(first))
                same = [u for u in self._units if u.key == first.key and u is not first]
                for unit in sorted(same, key=lambda unit: unit.start):
                    tokens += unit.tokens
                    if tokens > budget:
                        break
                    batch.append(unit)
            chosen = set(map(id, batch))
            self._units = [unit for unit in self._units if id(unit) not in chosen]
            return batch

    def _learn(self, batch: Sequence[Unit], seconds: float) -> None:
        name, tokens = batch[0].rate, sum(unit.tokens for unit in batch)
        here = tokens / max(seconds, 1e-6)
        with self._changed:
            before = self._rates.get(name, here)
            self._rates[name] = MEMORY * before + (1 - MEMORY) * here
