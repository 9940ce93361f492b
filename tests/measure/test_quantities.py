"""Quantities as people read them."""

from __future__ import annotations

import pytest

from linformer_kit.measure import quantities


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.00123, "1.23 ms"), (0.0456, "45.6 ms"), (2.5, "2.50 s"), (61.23, "61.2 s")],
)
def test_seconds(value, text):
    assert quantities.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (1, "1 byte"), (999, "999 bytes"), (29_400, "29.4 kB"),
        (1_500_000, "1.5 MB"), (2_340_000_000, "2.34 GB"),
    ],
)  # fmt: skip
def test_size(value, text):
    assert quantities.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0074, "7.40 ms"), (9, "9.00 s"), (45, "45 seconds"), (90, "1.5 minutes")]
)
def test_duration(value, text):
    assert quantities.duration(value) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 rows"), (1, "1 row"), (2000, "2,000 rows")])
def test_count(number, text):
    assert quantities.count(number, "row") == text


@pytest.mark.parametrize(
    ("number", "total", "text"),
    [(1, 1, "1 of 1 row was"), (1, 2, "1 of 2 rows was"), (3, 2000, "3 of 2,000 rows were")],
)
def test_a_part(number, total, text):
    assert quantities.of(number, total, "row") == text


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.5, "0.50x"), (23.14, "23.1x")])
def test_ratio(value, text):
    assert quantities.ratio(value) == text


@pytest.mark.parametrize(
    ("times", "text"), [(23.2, "1/23"), (2.0, "1/2"), (1.25, "80%"), (0.5, "200%")]
)
def test_fraction(times, text):
    assert quantities.fraction(times) == text
