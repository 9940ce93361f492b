"""Scores of search: each text's own positive among the positives of all texts, by cosine."""

from __future__ import annotations

import numpy as np

BLOCK = 1024  # texts at a time


def ranks(texts: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """(B): the rank of each text's own positive, from 1. Vectors (B, M) of any norm."""
    texts, positives = (_unit(vectors.astype(np.float32)) for vectors in (texts, positives))
    found = np.empty(len(texts), dtype=np.int64)
    for start in range(0, len(texts), BLOCK):
        here = slice(start, start + BLOCK)
        cosines = texts[here] @ positives.T  # (block, B)
        own = (texts[here] * positives[here]).sum(1, keepdims=True)
        # The product of a matrix may differ from its own row's in the last bit.
        nearer = cosines > own + 1e-6
        nearer[np.arange(len(nearer)), np.arange(start, start + len(nearer))] = False
        found[here] = 1 + nearer.sum(1)
    return found


def retrieval_metrics(rank: np.ndarray) -> dict[str, float]:
    """Recall at 1 and 10, nDCG at 10 and the mean reciprocal rank, of one right answer each."""
    gain = np.where(rank <= 10, 1 / np.log2(1 + rank), 0.0)
    return {
        "recall@1": float((rank <= 1).mean()),
        "recall@10": float((rank <= 10).mean()),
        "ndcg@10": float(gain.mean()),
        "mrr": float((1 / rank).mean()),
    }


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
