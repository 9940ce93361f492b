"""What is said about text that no model reads."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from linformer_kit.data.counts import Counts, share, unknown, unread


def test_cut_rows_and_tokens_are_said_in_one_sentence():
    counts = Counts(rows=1600, tokens=1_565_000, cut_rows=1200, cut_tokens=1_540_000)
    assert unread("train", asdict(counts), 16) == (
        "train: 1,200 of 1,600 rows were cut at data.max_length = 16; "
        "98.4 % of the tokens (1,540,000 of 1,565,000) were not read."
    )


def test_nothing_is_said_where_all_was_read():
    assert unread("train", asdict(Counts(rows=5, tokens=50)), 16) is None
    assert unknown("train", asdict(Counts(rows=5, tokens=50))) is None


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, None),
        ({"tokens": 10, "rows": 2, "truncated": 0}, None),
        ({"rows": 2, "truncated": 1}, "test: 1 of 2 rows was cut at data.max_length = 8."),
        (
            {"rows": 2, "tokens": 4000, "cut_tokens": 1},
            "test: less than 0.1 % of the tokens (1 of 4,000) were not read.",
        ),
    ],
)
def test_counts_of_an_older_version_are_read(counts, expected):
    assert unread("test", counts, 8) == expected


def test_unknown_tokens_are_said():
    said = unknown("test", asdict(Counts(tokens=200, unknown=30)))
    assert said is not None
    assert said.startswith("test: 15.0 % of the tokens (30 of 200) are unknown")


@pytest.mark.parametrize("count", [1, 999_999])
def test_a_share_is_neither_none_nor_all_unless_it_is(count):
    assert share(count, 1_000_000) not in ("0.0 %", "100.0 %")
    assert (share(0, 10), share(10, 10)) == ("0.0 %", "100.0 %")
