"""The order in which units are computed, and which of them share a batch."""

from __future__ import annotations

import itertools
import threading

import pytest

from linformer_kit.serve.scheduler import Request, Scheduler, Unit


class Asked(Request):
    def __init__(self):
        super().__init__()
        self.error = None

    def failed(self, error):
        self.error = error


class Work(Unit):
    def __init__(self, request, log, name, tokens=100, key=None, error=None):
        super().__init__(request, rate="model", tokens=tokens, key=key)
        self.log, self.name, self.error = log, name, error

    def run(self, batch, pause):
        self.log.append([unit.name for unit in batch])
        if self.error:
            raise self.error


@pytest.fixture
def scheduled():
    """Units are queued while the worker is held, then computed to the end."""

    def run(units, *, tokens_per_batch=1000, deadline=10.0, before=lambda: None):
        scheduler = Scheduler(tokens_per_batch=tokens_per_batch, deadline=deadline)
        for some in units:
            scheduler.submit(some)
        before()
        scheduler.start()
        scheduler.stop()

    return run


def test_a_short_request_is_computed_before_the_rest_of_a_longer_one(scheduled):
    log, long, short = [], Asked(), Asked()
    scheduled([
        [Work(long, log, f"long {n}", 500) for n in range(5)],
        [Work(short, log, "short", 10)],
    ])  # fmt: skip
    assert log[:2] == [["long 0"], ["short"]]
    assert len(log) == 6


def test_requests_of_one_length_take_turns(scheduled):
    log, one, two = [], Asked(), Asked()
    scheduled([
        [Work(one, log, f"one {n}") for n in range(3)],
        [Work(two, log, f"two {n}") for n in range(3)],
    ])  # fmt: skip
    assert log == [["one 0"], ["two 0"], ["one 1"], ["two 1"], ["one 2"], ["two 2"]]


def test_units_of_one_key_share_a_batch_within_the_budget(scheduled):
    log, one, two = [], Asked(), Asked()
    scheduled(
        [
            [Work(one, log, f"a{n}", 100, key="a") for n in range(4)],
            [Work(two, log, "b", 100, key="b"), Work(two, log, "a4", 100, key="a")],
        ],
        tokens_per_batch=300,
    )
    assert log[0][0] == "a0"
    assert len(log[0]) == 3
    assert sorted(itertools.chain.from_iterable(log)) == ["a0", "a1", "a2", "a3", "a4", "b"]
    assert all(len({name[0] for name in batch}) == 1 for batch in log)


def test_a_batch_is_no_longer_than_the_deadline(scheduled):
    log, one = [], Asked()
    scheduled(
        [[Work(one, log, n, 100, key="a") for n in range(6)]],
        deadline=0.01,  # at the first rate of 20,000 tokens a second: two units
    )
    assert len(log[0]) == 2


def test_an_error_reaches_the_requests_of_its_batch_alone(scheduled):
    log, bad, good = [], Asked(), Asked()
    scheduled([
        [Work(bad, log, "bad", error=RuntimeError("broken")), Work(bad, log, "more")],
        [Work(good, log, "good")],
    ])  # fmt: skip
    assert str(bad.error) == "broken"
    assert good.error is None
    assert log == [["bad"], ["good"]]


def test_cancelled_requests_are_not_computed(scheduled):
    log, gone, stays = [], Asked(), Asked()

    def go():
        gone.cancelled = True

    scheduled([[Work(gone, log, "gone")], [Work(stays, log, "stays")]], before=go)
    assert log == [["stays"]]


def test_what_is_queued_is_finished_before_the_end():
    log, asked = [], Asked()
    scheduler = Scheduler(tokens_per_batch=1, deadline=1.0)
    scheduler.start()
    held = threading.Event()

    class Held(Work):
        def run(self, batch, pause):
            held.wait(10)
            super().run(batch, pause)

    scheduler.submit([Held(asked, log, "held"), *(Work(asked, log, n) for n in range(5))])
    assert scheduler.seconds_queued() > 0
    ending = threading.Thread(target=scheduler.stop)
    ending.start()
    held.set()
    ending.join(10)
    assert log == [["held"], [0], [1], [2], [3], [4]]
