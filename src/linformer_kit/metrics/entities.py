"""Precision, recall and F1 of spans: a span is right if its type, beginning and end are.

By the definition of seqeval and of the CoNLL script: micro averages over all spans, and the mean of
F1 over the types that occur in the text or in the predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.iob import spans_of
from ..data.masking import IGNORED

if TYPE_CHECKING:
    from collections.abc import Sequence


def count_spans(
    truth: np.ndarray, guess: np.ndarray, core: Sequence[int], types: int
) -> np.ndarray:
    """(types, 3): spans that are right, predicted and in the text, of label numbers (N).

    Places where the truth is -100 are left out. core: (first, end, cut). Only spans that begin at
    the places `first` to `end` count. If `cut`, the last span of the text goes on after the row,
    and what is found of it is not right.
    """
    places = np.flatnonzero(truth != IGNORED)
    first, last = np.searchsorted(places, core[:2]).tolist()
    found, real = (_owned(spans_of(labels[places]), first, last) for labels in (guess, truth))
    right = {span for span in found & real if not core[2] or span[2] < len(places)}
    counted = np.zeros((types, 3))
    for column, spans in enumerate((right, found, real)):
        for type_, _, _ in spans:
            counted[type_, column] += 1
    return counted


def _owned(spans: np.ndarray, first: int, last: int) -> set[tuple[int, int, int]]:
    return {(span[0], span[1], span[2]) for span in spans.tolist() if first <= span[1] < last}


def entity_metrics(counted: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Metrics of counts (types, 3): right, predicted, in the text."""
    every = {
        name: {**_scores(*row), "spans": int(row[2])}
        for name, row in zip(names, counted, strict=True)
        if row[1:].any()
    }
    return {
        **_scores(*counted.sum(axis=0)),
        "macro_f1": float(np.mean([one["f1"] for one in every.values()])) if every else 0.0,
        "types": every,
    }


def _scores(right: float, predicted: float, real: float) -> dict[str, float]:
    """Precision, recall and F1; 0 where nothing is divided by, as in seqeval."""
    return {
        "precision": float(right / predicted) if predicted else 0.0,
        "recall": float(right / real) if real else 0.0,
        "f1": float(2 * right / (predicted + real)) if predicted + real else 0.0,
    }
