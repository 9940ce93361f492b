"""The baseline, counted here by plain loops."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from linformer_kit.compare.baseline import Baseline, baseline
from linformer_kit.config.load import load
from linformer_kit.data.masking import IGNORED
from linformer_kit.data.prepare import prepare
from linformer_kit.data.rows import Rows
from linformer_kit.training.setup import collator

from ..train import tiny


def prepared_for(tmp_path, task, **train):
    config = load(tiny.write(tmp_path, task, **train))
    return config, prepare(config)


def rows_of(prepared, part, limit=None):
    rows = Rows(prepared.part(part), limit)
    return [rows[number] for number in range(len(rows))]


def frequencies(rows, column, size, without=()):
    counts = Counter(int(token) for row in rows for token in row[column])
    for token in without:
        counts.pop(token, None)
    total = sum(counts.values())
    return [(counts[token] + 1) / (total + size) for token in range(size)]


@pytest.mark.parametrize("part", ["validation", "test"])
@pytest.mark.parametrize("task", ["clm", "translate"])
def test_the_frequency_of_tokens(tmp_path, task, part):
    config, prepared = prepared_for(tmp_path, task)
    column = "labels" if task == "translate" else "input_ids"
    size = prepared.meta["vocab_size"]
    chance = frequencies(rows_of(prepared, "train"), column, size)
    losses = []
    limit = config.evaluate.max_examples if part == "validation" else None
    for row in rows_of(prepared, part, limit):
        asked = row[column] if task == "translate" else row[column][1:]
        losses += [-math.log(chance[token]) for token in asked]
    found = baseline(config, prepared, part)
    expected = sum(losses) / len(losses)
    assert found.metrics["loss"] == pytest.approx(expected)
    assert found.metrics["perplexity"] == pytest.approx(math.exp(expected))
    if task == "clm":
        counts = prepared.meta["parts"][part]
        bits = expected / math.log(2) * counts["tokens"] / counts["bytes"]
        assert found.metrics["bits_per_byte"] == pytest.approx(bits)


@pytest.mark.parametrize("whole_words", [False, True])
def test_masked_tokens_are_known_by_frequency_and_by_what_is_seen(tmp_path, whole_words):
    config, prepared = prepared_for(tmp_path, "mlm", whole_words=whole_words, mask_share=0.5)
    tokenizer = prepared.tokenizer()
    size, mask = len(tokenizer), tokenizer.mask_token_id
    chance = frequencies(
        rows_of(prepared, "train"), "input_ids", size, without=tokenizer.all_special_ids
    )
    batch = collator(config, tokenizer)(rows_of(prepared, "test"))
    losses = []
    for seen, label in zip(
        batch["input_ids"].flatten().tolist(), batch["labels"].flatten().tolist(), strict=True
    ):
        if label == IGNORED:
            continue
        # By Bayes: 80 % show the mask, 10 % the token itself, 10 % one of all tokens.
        joint = [
            chance[token] * (0.8 if seen == mask else 0.1 * (seen == token) + 0.1 / size)
            for token in range(size)
        ]
        losses.append(-math.log(joint[label] / sum(joint)))
    found = baseline(config, prepared, "test")
    assert found.metrics["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)


def test_the_most_frequent_label(tmp_path):
    config, prepared = prepared_for(tmp_path, "classify")
    labels = [row["labels"] for row in rows_of(prepared, "test")]
    most = Counter(row["labels"] for row in rows_of(prepared, "train")).most_common(1)[0][0]
    found = baseline(config, prepared, "test")
    assert found.metrics == {"accuracy": pytest.approx(labels.count(most) / len(labels))}
    assert found.rows == len(labels)


def test_a_part_without_rows_has_no_baseline(tmp_path):
    path = tiny.write(tmp_path)
    config = load(path, ["data.test_share=0"])
    assert baseline(config, prepare(config), "test") is None


@pytest.mark.parametrize(("loss", "left"), [(4.1, False), (3.7, False), (3.61, False), (3.6, True)])
def test_a_language_model_leaves_it_with_a_tenth_less_loss(loss, left):
    assert Baseline("mlm", {"loss": 4.0}, 100).is_left_by({"loss": loss}) is left


@pytest.mark.parametrize(
    ("rows", "accuracy", "left"),
    [
        (10_000, 0.5, False),
        (10_000, 0.54, False),  # errors only 8 % fewer
        (10_000, 0.56, True),
        (100, 0.56, False),  # within two standard errors of 0.5
        (100, 0.61, True),
    ],
)
def test_a_classifier_leaves_it_beyond_chance(rows, accuracy, left):
    found = Baseline("classify", {"accuracy": 0.5}, rows)
    assert found.is_left_by({"accuracy": accuracy}) is left


def test_without_a_score_it_is_not_left():
    assert not Baseline("mlm", {"loss": 4.0}, 1).is_left_by({})
    assert not Baseline("mlm", {"loss": 4.0}, 1).is_left_by({"loss": math.nan})
