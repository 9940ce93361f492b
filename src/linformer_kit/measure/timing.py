"""The alternating timer: all candidates run in one process, in turns.

Other programs and a clock that slows when warm change the speed of a machine from minute to minute,
so times taken one candidate after the other are not comparable. Here every round runs each
candidate once, and a disturbance affects all of them. The best round is the least disturbed, so
ratios are made of best times; every single time is recorded.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..machine_memory import ran_out_of_memory
from .memory import DID_NOT_FIT

Say = Callable[[str], None]  # takes the text of a progress line


def say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True)
class Timing:
    """Every time of one candidate, in seconds, in the order of the rounds."""

    seconds: tuple[float, ...]
    note: str | None = None  # why it was left out, or stopped

    @property
    def best(self) -> float | None:
        return min(self.seconds, default=None)

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def spread(self) -> float | None:
        """The interquartile range: how far apart the middle half of the times lies."""
        if not self.seconds:
            return None
        if len(self.seconds) == 1:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return high - low

    def as_record(self) -> dict[str, object]:
        """The fields of a record."""
        return {
            "seconds": self.seconds,
            "best": self.best,
            "median": self.median,
            "spread": self.spread,
            "note": self.note,
        }


def times_faster(ours: Timing, theirs: Timing) -> float | None:
    """best(theirs) / best(ours), over the rounds that both took part in.

    More rounds give a better best, so a slow candidate with 3 rounds is compared with the first 3
    of the others.
    """
    both = min(len(ours.seconds), len(theirs.seconds))
    if not both:
        return None
    return min(theirs.seconds[:both]) / min(ours.seconds[:both])


def seconds_of(run: Callable[[], object], *, times: int = 1) -> float:
    """The mean of so many runs; what was not warm before is part of it."""
    started = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - started) / times


@contextmanager
def fixed_threads(threads: int) -> Iterator[None]:
    """Set the number of torch threads, and restore it afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def alternate(
    runs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    fewest: int = 3,
    slow: float = 1.0,
    limit: float = math.inf,
    count_first_over: float = math.inf,
    must_run: bool = False,
    say: Say = say_nothing,
) -> dict[str, Timing]:
    """Warm every candidate up, then time `rounds` rounds in which each runs once, in turn.

    A candidate that takes more than `slow` seconds runs in fewer rounds, the first ones, so that it
    costs about rounds * slow seconds; but in at least `fewest`. One whose first run takes more than
    `limit` seconds is left out. A first run of more than `count_first_over` seconds counts as a
    time too: the cost of a warm-up (loading code, starting threads) is negligible beside it.

    A candidate that fails stops, with a note that says why, and the others continue; with
    `must_run` its error is raised.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    notes: dict[str, str] = {}
    rounds_of: dict[str, int] = {}
    for name, run in runs.items():
        say(f"{name}, warming up")
        first = _clock(run, must_run)
        if isinstance(first, str):
            notes[name] = first
        elif first > limit:
            notes[name] = f"left out: one run took {first:.1f} s, the limit is {limit:g} s"
        else:
            rounds_of[name] = _rounds_for(first, rounds=rounds, fewest=fewest, slow=slow)
            if first > count_first_over:
                times[name].append(first)
    for number in range(rounds):
        for name, run in runs.items():
            if number >= rounds_of.get(name, 0):
                continue
            say(f"{name}, round {number + 1} of {rounds_of[name]}")
            taken = _clock(run, must_run)
            if isinstance(taken, str):
                notes[name] = taken
                rounds_of[name] = 0
            else:
                times[name].append(taken)
    return {name: Timing(tuple(times[name]), notes.get(name)) for name in runs}


def _rounds_for(first: float, *, rounds: int, fewest: int, slow: float) -> int:
    if first <= slow:
        return rounds
    return min(rounds, max(fewest, int(rounds * slow / first)))


def _clock(run: Callable[[], object], must_run: bool) -> float | str:
    """The seconds a run takes, or what went wrong."""
    try:
        return seconds_of(run)
    except (MemoryError, RuntimeError) as error:
        if must_run:
            raise
        if ran_out_of_memory(error):
            return DID_NOT_FIT
        # Messages of torch may end with a stack of C++ frames.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return f"failed: {lines[0]}"
