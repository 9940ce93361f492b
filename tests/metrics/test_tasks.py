"""Metrics against scikit-learn and against sums done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score

from linformer_kit.metrics.tasks import Metrics, classification, is_better


def test_classification_agrees_with_scikit_learn():
    random = np.random.default_rng(0)
    truth, guess = random.integers(0, 4, 200), random.integers(0, 4, 200)
    found = classification(np.stack([np.ones(200), truth, guess], 1), 4)
    assert found["confusion"] == confusion_matrix(truth, guess).tolist()
    assert found["macro_f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    assert found["accuracy"] == pytest.approx((truth == guess).mean())


def test_perplexity_and_bits_per_byte():
    rows = np.array([[math.log(8) * 10, 10, 4], [math.log(2) * 10, 10, 2]])
    found = Metrics(task="clm", tokens=100, bytes=400)(rows)
    assert found["perplexity"] == pytest.approx(4.0)
    assert found["accuracy"] == pytest.approx(0.3)
    assert found["bits_per_byte"] == pytest.approx(2.0 * 100 / 400)


def test_every_metric_improves_with_better_predictions():
    good, bad = np.array([[1.0, 10, 9]]), np.array([[20.0, 10, 2]])
    metrics = Metrics(task="clm", tokens=100, bytes=400)
    ours, theirs = metrics(good), metrics(bad)
    truth = np.arange(10) % 2
    right, half = (np.stack([1 - (truth == g), truth, g], 1) for g in (truth, truth * 0))
    ours["macro_f1"] = classification(right, 2)["macro_f1"]
    theirs["macro_f1"] = classification(half, 2)["macro_f1"]
    assert ours.keys() == {"loss", "perplexity", "accuracy", "bits_per_byte", "macro_f1"}
    for name in ours:
        assert is_better(name, ours[name], theirs[name])
        assert not is_better(name, theirs[name], ours[name])
        assert not is_better(name, ours[name], ours[name])
