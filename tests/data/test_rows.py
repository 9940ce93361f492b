"""Rows of a part, by number."""

from __future__ import annotations

import pytest
from datasets import Dataset

from linformer_kit.data.rows import Rows

SORTED = Dataset.from_dict({"label": [0] * 50 + [1] * 50})


def test_a_limit_takes_rows_evenly_from_a_sorted_file():
    chosen = Rows(SORTED, 10)
    assert chosen.column("label").tolist() == [0] * 5 + [1] * 5
    assert [row["draw"] for row in chosen.__getitems__(range(10))] == [
        -1 - number for number in range(0, 100, 10)
    ]


@pytest.mark.parametrize("limit", [None, 100, 1000])
def test_without_a_limit_that_binds_every_row_is_there_in_order(limit):
    assert [row["draw"] for row in Rows(SORTED, limit).__getitems__(range(100))] == [
        -1 - number for number in range(100)
    ]


@pytest.mark.parametrize("limit", [1, 3, 7, 99])
def test_no_row_is_taken_twice(limit):
    draws = [Rows(SORTED, limit)[number]["draw"] for number in range(limit)]
    assert len(set(draws)) == limit
