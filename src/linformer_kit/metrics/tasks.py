"""The metrics of each task, from the scores of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..data.iob import types_of
from ..data.overflow import mean_of_pieces
from .entities import entity_metrics
from .retrieval import ranks, retrieval_metrics

if TYPE_CHECKING:
    from ..config.schema import Task

# The metric a run is judged by.
MAIN_METRIC: dict[Task, str] = {
    "mlm": "perplexity",
    "clm": "bits_per_byte",
    "classify": "accuracy",
    "tag": "f1",
    "embed": "ndcg@10",
    "translate": "perplexity",
}
LOWER_IS_BETTER = {"loss", "perplexity", "bits_per_byte"}


@dataclass(frozen=True)
class Metrics:
    """Metrics of a part of the data; `tokens` and `bytes` are those of its text."""

    task: Task
    labels: tuple[str, ...] = ()
    tokens: int = 0
    bytes: int = 0
    sizes: tuple[int, ...] = ()  # of vectors, where the first components alone are vectors too

    def __call__(self, scores: np.ndarray) -> dict[str, Any]:
        if self.task == "classify":
            return classification(scores, len(self.labels))
        if self.task == "embed":
            return self._embedding(scores)
        total, count, right = scores[:, :3].sum(axis=0)
        loss = float(total / max(count, 1))
        metrics: dict[str, Any] = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if not math.isnan(right):
            metrics["accuracy"] = float(right / max(count, 1))
        if self.task == "tag":
            del metrics["perplexity"]
            types = types_of(self.labels)
            counted = scores[:, 3:].sum(axis=0).reshape(len(types), 3)
            metrics |= entity_metrics(counted, types)
        if self.task == "clm" and self.bytes:
            # The mean over the tokens that were predicted, times all tokens of the text.
            metrics["bits_per_byte"] = loss / math.log(2) * self.tokens / self.bytes
        return metrics

    def _embedding(self, scores: np.ndarray) -> dict[str, Any]:
        texts, positives = np.split(scores, 2, axis=1)
        found: dict[str, Any] = retrieval_metrics(ranks(texts, positives))
        if self.sizes:
            found["sizes"] = {
                str(size): retrieval_metrics(ranks(texts[:, :size], positives[:, :size]))
                for size in sorted(self.sizes)
            }
        return found


def classification(scores: np.ndarray, classes: int) -> dict[str, Any]:
    """Loss, accuracy, macro F1 and the confusion matrix: row = label, column = prediction."""
    truth, guess = scores[:, 1].astype(int), scores[:, 2].astype(int)
    table = np.zeros((classes, classes), dtype=int)
    np.add.at(table, (truth, guess), 1)
    hits = np.diag(table)
    present = (table.sum(0) + table.sum(1)) > 0  # a class that occurs on neither side has no F1
    f1 = 2 * hits[present] / (table.sum(0) + table.sum(1))[present]
    return {
        "loss": float(scores[:, 0].mean()),
        "accuracy": float(hits.sum() / max(table.sum(), 1)),
        "macro_f1": float(f1.mean()),
        "confusion": table.tolist(),
    }


def of_documents(scores: np.ndarray, documents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Scores of the pieces of documents (classify) as those of documents.

    The probabilities of a document are the mean over its pieces, weighted by their tokens.
    """
    found = []
    for document in np.unique(documents):
        here = documents == document
        likely = mean_of_pieces(scores[here, 3:], tokens[here])
        label = scores[here, 1][0]
        loss = -math.log(max(likely[int(label)], np.finfo(np.float64).tiny))
        found.append([loss, label, float(likely.argmax()), *likely])
    return np.asarray(found)


def is_better(metric: str, one: float, other: float) -> bool:
    """Whether the first of two values of a metric is the better one."""
    return one < other if metric in LOWER_IS_BETTER else one > other


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are single numbers."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
