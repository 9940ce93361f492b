"""Spans of label sequences, by the rules of seqeval."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linformer_kit.data.iob import entities, label_names, spans_of, types_of

# Cases of seqeval's documentation and tests, and of the CoNLL script; ends are not included here.
CASES = [
    ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
    ("O O O B-MISC I-MISC I-MISC O", [("MISC", 3, 6)]),
    ("I-PER I-PER O", [("PER", 0, 2)]),  # IOB1
    ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
    ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
    ("B-PER I-PER E-PER S-PER O", [("PER", 0, 3), ("PER", 3, 4)]),  # IOBES
    ("E-PER E-PER I-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 3)]),
    ("B-PER L-PER U-LOC", [("PER", 0, 2), ("LOC", 2, 3)]),  # BILOU
    ("PER PER O LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
    ("B-a-b I-a-b I-a", [("a-b", 0, 2), ("a", 2, 3)]),
    ("O O", []),
    ("", []),
]


@pytest.mark.parametrize(("labels", "expected"), CASES)
def test_spans_of_names(labels, expected):
    assert entities(labels.split()) == expected


@given(st.lists(st.integers(0, 6), max_size=12))
def test_spans_of_numbers_are_those_of_their_names(numbers):
    names = label_names(["a", "b", "c"])
    found = spans_of(np.array(numbers, dtype=np.int64))
    expected = entities([names[number] for number in numbers])
    assert [("abc"[type_], start, end) for type_, start, end in found.tolist()] == expected


def test_names_and_types_lead_both_ways():
    assert label_names(["x", "y-z"]) == ["O", "B-x", "I-x", "B-y-z", "I-y-z"]
    assert types_of(label_names(["x", "y-z"])) == ["x", "y-z"]
