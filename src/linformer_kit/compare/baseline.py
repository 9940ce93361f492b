"""The baseline: the metrics of a model that predicts by frequency alone.

mlm        the frequency of tokens in the training part, without special ones, and the token that is
           seen at the masked position itself: mostly the mask, else the token or a random one
clm        the frequency of tokens
translate  the frequency of tokens of the targets
classify   the most frequent label of the training part
tag        for each token its most frequent label in the training part
embed      the mean of random vectors of the tokens: how many words two texts share

A model has left the baseline when its loss is at least 10 % below that of the baseline, or, in
classification, tagging and embedding, its errors (1 - accuracy, F1 or nDCG) are at least 10 %
fewer, and fewer by more than two standard errors of the baseline's score. Before that, differences
between models say little about what they learn.

The frequency of each of V tokens is (count + 1) / (all + V): a token that is not in the training
part has a chance too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..data.masking import IGNORED
from ..data.rows import Rows
from ..data.tagging import by_word
from ..metrics.entities import count_spans
from ..metrics.retrieval import ranks, retrieval_metrics
from ..metrics.tasks import MAIN_METRIC, numbers
from ..training.setup import collator, metrics_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from datasets import Dataset

    from ..config.schema import RunConfig, Task
    from ..data.corpus import Part
    from ..data.masking import Masking
    from ..data.prepare import Prepared

MARGIN = 0.1  # of the baseline's loss or errors
BATCH = 256  # rows read at a time
RANDOM_SIZE = 128  # of the vectors of tokens


class Baseline(NamedTuple):
    """The metrics of the baseline on one part of the data."""

    task: Task
    metrics: dict[str, float]
    rows: int  # of which the main metric is a mean; in tagging the spans

    @property
    def main(self) -> str:
        """The metric that a run of this task is judged by."""
        return MAIN_METRIC[self.task]

    def is_left_by(self, metrics: dict[str, float]) -> bool:
        """Whether a model with these metrics on the same part is clearly better."""
        if self.task in ("classify", "tag", "embed"):
            before = 1 - self.metrics[self.main]
            now = 1 - metrics.get(self.main, 0.0)
            noise = math.sqrt(before * (1 - before) / max(self.rows, 1))
            return now <= (1 - MARGIN) * before and before - now > 2 * noise
        return metrics.get("loss", math.inf) <= (1 - MARGIN) * self.metrics["loss"]


def baseline(config: RunConfig, prepared: Prepared, part: Part) -> Baseline | None:
    """The baseline on the rows of this part that `linformer evaluate` scores; None without rows."""
    train, evaluated = prepared.part("train"), prepared.part(part)
    if train is None or evaluated is None:
        return None
    rows = Rows(evaluated, config.evaluate.limit(part))
    if config.task == "classify":
        found = _most_frequent_label(Rows(train), rows)
    elif config.task == "embed":
        found = _shared_words(config, prepared, rows)
    elif config.task == "tag":
        return _most_frequent_tags(config, prepared, part, rows)
    else:
        loss = _loss_of_frequencies(config, prepared, train, rows)
        scores = np.array([[loss, 1.0, np.nan]])  # summed loss, tokens, correct: not counted
        found = metrics_of(config, prepared, part, None)(scores)
    return Baseline(config.task, found, len(_of_documents(rows, "length")))


def _most_frequent_label(train: Rows, rows: Rows) -> dict[str, float]:
    counts = np.bincount(_of_documents(train, "labels"))
    return {"accuracy": float((_of_documents(rows, "labels") == counts.argmax()).mean())}


def _of_documents(rows: Rows, name: str) -> np.ndarray:
    """A column with one value for each document, which may have several rows."""
    column = rows.column(name)
    if not rows.has("document"):
        return column
    return column[np.unique(rows.column("document"), return_index=True)[1]]


def _most_frequent_tags(config: RunConfig, prepared: Prepared, part: Part, rows: Rows) -> Baseline:
    train = prepared.part("train")
    tokenizer = prepared.tokenizer()
    assert train is not None
    assert tokenizer is not None
    labels = len(prepared.meta["labels"])
    counts = np.zeros((len(tokenizer), labels), dtype=np.int64)
    for row in _every(Rows(train)):
        real = row["tags"] != IGNORED
        np.add.at(counts, (row["input_ids"][real], row["tags"][real]), 1)
    likely = counts.argmax(1)
    types = (labels - 1) // 2
    counted = np.zeros((types, 3))
    for row in _every(rows):
        guess = by_word(likely[row["input_ids"]], row["word_starts"])
        core = (row["core_start"], row["core_end"], row["cut_span"])
        counted += count_spans(row["tags"], guess, core, types)
        counted[:, 2] += np.bincount(row["missed"], minlength=types)
    scores = np.concatenate([[np.nan, 1.0, np.nan], counted.reshape(-1)])[None]
    found = numbers(metrics_of(config, prepared, part, None)(scores))
    metrics = {name: found[name] for name in ("precision", "recall", "f1", "macro_f1")}
    return Baseline("tag", metrics, int(counted[:, 2].sum()))


def _shared_words(config: RunConfig, prepared: Prepared, rows: Rows) -> dict[str, float]:
    tokenizer = prepared.tokenizer()
    assert tokenizer is not None
    size = max(config.train.matryoshka, default=RANDOM_SIZE)
    table = np.random.default_rng(config.seed).standard_normal((len(tokenizer), size))
    table[tokenizer.all_special_ids] = 0.0
    texts, positives = (
        np.stack([table[row[side]].mean(0) for row in _every(rows)])
        for side in ("input_ids", "positive")
    )
    return retrieval_metrics(ranks(texts, positives))


def _every(rows: Rows) -> Iterator[dict[str, Any]]:
    for start in range(0, len(rows), BATCH):
        yield from rows.__getitems__(range(start, min(start + BATCH, len(rows))))


def _loss_of_frequencies(
    config: RunConfig, prepared: Prepared, train: Dataset, rows: Rows
) -> float:
    """Nats a token."""
    tokenizer = prepared.tokenizer()
    assert tokenizer is not None
    column = "labels" if config.task == "translate" else "input_ids"
    counts = _token_counts(train, column, len(tokenizer))
    masking = collator(config, tokenizer).masking
    if masking is not None:
        counts[list(masking.special_ids)] = 0
    frequency = (counts + 1) / (counts.sum() + len(counts))
    total, tokens = 0.0, 0
    for row in _every(rows):
        probabilities = _probabilities(row, config.task, frequency, masking)
        total -= float(np.log(probabilities).sum())
        tokens += len(probabilities)
    return total / max(tokens, 1)


def _token_counts(part: Dataset, column: str, vocab_size: int) -> np.ndarray:
    """How often each token occurs, a chunk of the file at a time."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for chunk in part.data.column(column).chunks:
        counts += np.bincount(chunk.flatten().to_numpy(), minlength=vocab_size)
    return counts


def _probabilities(
    row: dict[str, Any], task: Task, frequency: np.ndarray, masking: Masking | None
) -> np.ndarray:
    """The baseline's probability of each target token of a row."""
    if task == "translate":
        return frequency[row["labels"]]
    ids = row["input_ids"].astype(np.int64)
    if masking is None:
        return frequency[ids[1:]]
    seen, labels = masking(ids, row["word_starts"], row["draw"])
    asked = labels >= 0
    seen, labels = seen[asked], labels[asked]
    # Where a chosen position shows no mask, its own token and a random one are equally likely, so
    # P(label | seen) = f(label) ([label = seen] + 1/V) / (f(seen) + 1/V).
    uniform = 1 / len(frequency)
    visible = frequency[labels] * ((labels == seen) + uniform) / (frequency[seen] + uniform)
    return np.where(seen == masking.mask_id, frequency[labels], visible)
