"""Timing: candidates take turns, every time is kept, and nobody is dropped in silence."""

from __future__ import annotations

import time

import pytest
import torch

from linformer_kit.measure.timing import Timing, alternate, fixed_threads, times_faster


def recording(log: list[str], name: str, seconds: float = 0.0):
    def run() -> None:
        log.append(name)
        time.sleep(seconds)

    return run


def test_every_round_runs_each_candidate_once_in_turn():
    log: list[str] = []
    timings = alternate({name: recording(log, name) for name in "abc"}, rounds=4)
    assert log == list("abc") * 5  # the first time to warm up
    assert {name: len(timing.seconds) for name, timing in timings.items()} == dict.fromkeys(
        "abc", 4
    )
    assert all(timing.note is None for timing in timings.values())


def test_times_are_those_of_the_runs():
    timing = alternate({"a": recording([], "a", 0.05)}, rounds=3)["a"]
    assert all(0.05 <= seconds < 0.5 for seconds in timing.seconds)


def test_a_slow_candidate_runs_fewer_rounds():
    log: list[str] = []
    runs = {"slow": recording(log, "slow", 0.05), "quick": recording(log, "quick")}
    timings = alternate(runs, rounds=8, fewest=3, slow=0.02)
    assert len(timings["slow"].seconds) == 3
    assert len(timings["quick"].seconds) == 8
    assert log[:8] == ["slow", "quick"] * 4


def test_a_candidate_over_the_limit_is_left_out_and_says_so():
    log: list[str] = []
    runs = {"slow": recording(log, "slow", 0.06), "quick": recording(log, "quick")}
    timings = alternate(runs, rounds=3, limit=0.05)
    assert log.count("slow") == 1
    assert timings["slow"].seconds == ()
    assert timings["slow"].note == "left out: one run took 0.1 s, the limit is 0.05 s"
    assert len(timings["quick"].seconds) == 3


def test_a_long_first_run_counts_where_asked():
    log: list[str] = []
    timings = alternate(
        {"slow": recording(log, "slow", 0.06)}, rounds=2, fewest=0, slow=0.02, count_first_over=0.05
    )
    assert log == ["slow"]
    assert len(timings["slow"].seconds) == 1


def test_a_candidate_that_fails_is_reported_and_the_others_go_on():
    def fail() -> None:
        raise RuntimeError("shapes do not match\nframe #0: somewhere")

    timings = alternate({"broken": fail, "fine": lambda: None}, rounds=2)
    assert timings["broken"] == Timing((), note="failed: shapes do not match")
    assert len(timings["fine"].seconds) == 2


def test_want_of_memory_is_told_in_three_words():
    timing = alternate({"a": lambda: torch.empty(2**60, dtype=torch.uint8)}, rounds=1)["a"]
    assert timing.note == "did not fit"


def test_failing_later_keeps_the_times_so_far():
    runs = iter([None, None, MemoryError()])

    def fail_at_last() -> None:
        if (error := next(runs)) is not None:
            raise error

    timing = alternate({"a": fail_at_last}, rounds=5)["a"]
    assert len(timing.seconds) == 1
    assert timing.note == "did not fit"


def test_best_median_and_spread():
    timing = Timing((4.0, 1.0, 2.0, 3.0, 5.0))
    assert (timing.best, timing.median, timing.spread) == (1.0, 3.0, 2.0)
    assert (Timing((2.0,)).best, Timing((2.0,)).spread) == (2.0, 0.0)
    assert (Timing(()).best, Timing(()).median, Timing(()).spread) == (None, None, None)


def test_a_ratio_compares_the_rounds_both_took_part_in():
    ours = Timing((2.0, 1.5, 1.0, 0.5))
    assert times_faster(ours, Timing((6.0, 4.5))) == 3.0
    assert times_faster(ours, Timing(())) is None


def test_threads_are_fixed_and_given_back_even_after_an_error():
    before = torch.get_num_threads()

    def fail_with_other_threads() -> None:
        with fixed_threads(before + 1):
            raise KeyError(torch.get_num_threads())

    with pytest.raises(KeyError, match=str(before + 1)):
        fail_with_other_threads()
    assert torch.get_num_threads() == before
