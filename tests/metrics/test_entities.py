"""Scores of spans: seqeval's documented cases."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.data.iob import label_names
from linformer_kit.metrics.entities import count_spans, entity_metrics

TYPES = ["MISC", "PER"]
NUMBER = {name: place for place, name in enumerate(label_names(TYPES))}


def numbers(labels):
    return np.array([NUMBER[label] for label in labels.split()])


def metrics(*pairs):
    counted = [
        count_spans(numbers(truth), numbers(guess), (0, len(truth.split()), 0), 2)
        for truth, guess in pairs
    ]
    return entity_metrics(np.sum(counted, axis=0), TYPES)


def test_the_example_of_seqeval():
    """Its README: precision, recall and F1 are 0.5, MISC 0 and PER 1, macro 0.5."""
    found = metrics(
        ("O O O B-MISC I-MISC I-MISC O", "O O B-MISC I-MISC I-MISC I-MISC O"),
        ("B-PER I-PER O", "B-PER I-PER O"),
    )
    assert found == {
        "precision": 0.5,
        "recall": 0.5,
        "f1": 0.5,
        "macro_f1": 0.5,
        "types": {
            "MISC": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "spans": 1},
            "PER": {"precision": 1.0, "recall": 1.0, "f1": 1.0, "spans": 1},
        },
    }


def test_precision_and_recall_differ():
    found = metrics(("B-PER O B-PER O B-MISC", "B-PER O O O O"))
    assert (found["precision"], found["recall"]) == (1.0, pytest.approx(1 / 3))
    assert found["f1"] == pytest.approx(0.5)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 0) / 2)


def test_the_type_and_both_ends_must_be_right():
    for guess in ("B-MISC I-MISC O", "B-PER O O", "B-PER I-PER I-PER", "B-PER B-PER O"):
        assert metrics(("B-PER I-PER O", guess))["f1"] == 0.0


def test_nothing_to_find_scores_zero_as_in_seqeval():
    assert metrics(("O O", "O O")) == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "macro_f1": 0.0,
        "types": {},
    }


def test_only_spans_that_begin_in_the_core_count():
    labels = numbers("B-PER I-PER B-PER I-PER B-PER")
    assert count_spans(labels, labels, (2, 4, 0), 2)[1].tolist() == [1, 1, 1]
    assert count_spans(labels, labels, (1, 5, 0), 2)[1].tolist() == [2, 2, 2]


def test_a_span_that_the_end_of_a_row_cuts_is_not_right():
    labels = numbers("O B-PER I-PER I-PER O")
    labels[-1] = -100  # the frame
    assert count_spans(labels, labels, (0, 4, 0), 2)[1].tolist() == [1, 1, 1]
    assert count_spans(labels, labels, (0, 4, 1), 2)[1].tolist() == [0, 1, 1]
