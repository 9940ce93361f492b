"""Features: numbers that float32 holds, or a reason."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linformer_kit.data.features import features_of

LARGEST = float(np.finfo(np.float32).max)
NUMBERS = st.integers(-(2**64), 2**64) | st.floats(-LARGEST, LARGEST)


ROWS = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.lists(NUMBERS, min_size=size, max_size=size), min_size=1)
)


@given(ROWS)
def test_numbers_are_kept(rows):
    values = features_of(rows)
    assert values.dtype == np.float32
    assert values.tolist() == [[float(np.float32(number)) for number in row] for row in rows]


def test_a_flat_list_has_one_number_a_position():
    assert features_of([1, 2.5]).tolist() == [[1.0], [2.5]]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([math.nan], "got nan, which is not finite, at position 0"),
        ([[1.0, 2.0], [3.0, math.inf]], "got inf, which is not finite, at position 1"),
        ([1.0, 1e300], "got 1e\\+300, which float32 cannot hold, at position 1"),
        ([-(10**400)], "got -inf"),
        ([1, None], "got null"),
        (["1"], "got text"),
        ([True], "got true or false"),
        ([[1], [True]], "got true or false"),
        ([[[1]]], "got a list"),
        ([[1], 2], "got a value of type int"),
        ([1, [2]], "got a list"),
        ([[1], [2, 3]], r"got \[1, 2\]"),
        ([[], []], r"got \[0\]"),
        ([], "got none"),
        ("1 2", "got text"),
        (None, "got null"),
        (5, "got a value of type int"),
        ({}, "got an object"),
    ],
)
def test_anything_else_is_refused(value, reason):
    with pytest.raises(ValueError, match=reason):
        features_of(value)
