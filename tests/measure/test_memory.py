"""Peak memory: known bytes are found again, and a child that dies is a result."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from linformer_kit.measure.memory import DID_NOT_FIT, PeakMemory, peak_memory

ROOT = Path(__file__).parents[2]
MEGABYTE = 2**20

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak can be reset on Linux alone"
)


@pytest.fixture(autouse=True)
def _children_find_this_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


def peak_of(work: str, timeout: float = 60.0, **arguments: int) -> PeakMemory:
    return peak_memory(f"tests.measure.allocation:{work}", arguments, timeout=timeout)


def test_known_bytes_are_found_whatever_was_used_before():
    used, prepared = 100 * MEGABYTE, 60 * MEGABYTE
    peak = peak_of("tensors", prepared=prepared, used=used)
    assert peak.problem is None
    assert peak.method == "VmHWM"
    assert peak.work == pytest.approx(used, rel=0.03)
    assert peak.total == pytest.approx(used + prepared, rel=0.03)


@pytest.mark.parametrize("work", ["more_than_there_is", "killed"])
def test_a_child_out_of_memory_did_not_fit(work):
    assert peak_of(work) == PeakMemory(problem=DID_NOT_FIT)


def test_another_failure_is_told_in_one_line():
    problem = peak_of("broken").problem
    assert problem == "failed with exit code 1: KeyError: 'no such thing'"


def test_a_child_that_takes_too_long_is_ended():
    assert peak_of("endless", timeout=0.5).problem == "took more than 0.5 s"


def test_a_step_of_a_layer_takes_what_its_tensors_take():
    length, dim = 8192, 64
    peak = peak_memory(
        "linformer_kit.evidence.bench.implementations:memory_of_step",
        {
            "model": "linformer-pytorch",
            "layer": "attention",
            "mode": "inference",
            "dropout": 0.0,
            "seed": 0,
            "threads": 1,
            "point": {"dim": dim, "num_heads": 1, "k": 256, "length": length},
        },
    )
    weights = 4 * (length * 256 + 4 * dim * dim)
    tensor = 4 * length * dim
    scores = 4 * length * 256  # this one keeps them, before and after the softmax
    assert 2 * scores < peak.work < 3 * scores + 8 * tensor
    assert peak.total - peak.work == pytest.approx(weights + tensor, rel=0.15)


def test_the_parent_s_memory_is_not_the_child_s():
    held = bytearray(150 * MEGABYTE)
    held[::4096] = b"x" * len(held[::4096])
    peak = peak_of("tensors", prepared=MEGABYTE, used=50 * MEGABYTE)
    assert len(held) == 150 * MEGABYTE
    assert peak.work == pytest.approx(50 * MEGABYTE, rel=0.05)
