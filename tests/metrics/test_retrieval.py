"""Ranks and scores of search, against sorting."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.metrics.retrieval import ranks, retrieval_metrics


def test_a_rank_is_the_place_after_sorting():
    random = np.random.default_rng(0)
    texts, positives = random.standard_normal((2, 40, 6))
    texts += 0.5 * positives
    for place, rank in enumerate(ranks(texts, positives)):
        cosines = positives @ texts[place] / np.linalg.norm(positives, axis=1)
        assert 1 + np.argsort(-cosines).tolist().index(place) == rank


def test_equal_vectors_share_the_best_rank():
    same = np.ones((3, 4))
    assert ranks(same, same).tolist() == [1, 1, 1]


def test_scores_of_ranks():
    found = retrieval_metrics(np.array([1, 2, 10, 11]))
    assert found["recall@1"] == 0.25
    assert found["recall@10"] == 0.75
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 10 + 1 / 11) / 4)
    gains = [1 / np.log2(1 + rank) for rank in (1, 2, 10)]
    assert found["ndcg@10"] == pytest.approx(sum(gains) / 4)
