"""Rows and counts: every token is in a row or counted as not read."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.config.schema import TokenizerSection
from linformer_kit.data import tokenizer
from linformer_kit.data.examples import Examples
from linformer_kit.errors import UserError

WORDS = ["the", "old", "dog", "runs", "over", "a", "hill", "and", "a", "river"]
TEXTS = [" ".join(WORDS[: 1 + length % 9]) * (1 + length % 3) for length in range(40)]


def records(task):
    for number, text in enumerate(TEXTS):
        record = {"place": f"line {number}"}
        if task == "translate":
            yield record | {"source": text, "target": text[: number + 1].upper()}
        elif task == "features":
            yield record | {"features": [[1.0]] * (1 + number), "label": "a"}
        elif task == "classify":
            yield record | {"text": text, "label": "a"}
        else:
            yield record | {"text": text}


def lengths(record_task, record, made):
    """How many tokens a record has, by the tokenizer itself."""
    if record_task == "features":
        return [len(record["features"])]
    texts = [record[name] for name in ("text", "source", "target") if name in record]
    extra = 1 if record_task == "translate" else 2
    return [len(made(text, add_special_tokens=False)["input_ids"]) + extra for text in texts]


@pytest.mark.parametrize("max_length", [2, 3, 5, 16, 17, 10_000])
@pytest.mark.parametrize(
    ("task", "pack"),
    [
        ("mlm", True),
        ("mlm", False),
        ("clm", True),
        ("clm", False),
        ("classify", True),
        ("translate", True),
        ("features", True),
    ],
)
def test_every_token_is_in_a_row_or_counted_as_not_read(task, pack, max_length):
    name = "classify" if task == "features" else task
    section = TokenizerSection(kind="character", vocab_size=60)
    made = tokenizer.make(section, name, records("mlm")) if task != "features" else None
    maker = Examples(name, max_length, made, pack=pack, labels=["a"])
    if (task, max_length) == ("classify", 2):  # <s> and </s> leave no room for a text
        with pytest.raises(UserError, match="must leave room for a token beside the 2"):
            list(maker.rows(records(task)))
        return
    rows = list(maker.rows(records(task)))
    counts = maker.counts
    expected = [lengths(task, record, made) for record in records(task)]
    assert counts.tokens == sum(map(sum, expected))
    in_rows = sum(
        row["length"] if task == "features" else len(row["input_ids"]) for row in rows
    ) + sum(len(row["labels"]) for row in rows if task == "translate")
    assert in_rows + counts.cut_tokens == counts.tokens
    assert counts.rows == len(rows)
    if task in ("classify", "translate", "features"):
        assert counts.cut_rows == sum(max(sides) > max_length for sides in expected)
    elif pack:
        assert counts.cut_tokens <= 1
    else:
        assert counts.cut_tokens == sum(size % max_length == 1 for (size,) in expected)
    assert all(row["length"] <= max_length for row in rows)


@pytest.mark.parametrize("task", ["classify", "translate"])
def test_a_row_that_was_cut_still_has_an_end(task):
    made = tokenizer.make(TokenizerSection(kind="character", vocab_size=60), task, records("mlm"))
    for row in Examples(task, 4, made, labels=["a"]).rows(records(task)):
        assert row["input_ids"][-1] == made.eos_token_id


def test_unknown_tokens_are_counted():
    made = tokenizer.make(TokenizerSection(kind="character", vocab_size=60), "mlm", records("mlm"))
    maker = Examples("mlm", 32, made)
    list(maker.rows([{"text": "a §§ dog", "place": "line 1"}]))
    assert maker.counts.unknown == 2


def test_a_label_that_is_not_known_is_told_with_its_place():
    made = tokenizer.make(
        TokenizerSection(kind="character", vocab_size=60), "classify", records("mlm")
    )
    maker = Examples("classify", 32, made, labels=["yes", "no"])
    with pytest.raises(UserError, match=r"line 0: the label 'a' .*: 'yes', 'no'"):
        list(maker.rows(records("classify")))


def test_features_of_another_size_are_told_with_their_place():
    rows = [{"features": [[1.0] * size], "label": "a", "place": f"row {size}"} for size in (2, 3)]
    with pytest.raises(UserError, match=r"row 3: features must have one size .*: got 3 after 2"):
        list(Examples("classify", 8, labels=["a"]).rows(rows))


def test_a_cut_row_of_features_keeps_its_beginning():
    record = {"features": [[1.0, 2.0], [3.0, 4.0]], "label": "a", "place": "row 1"}
    (row,) = Examples("classify", 1, labels=["a"]).rows([record])
    np.testing.assert_array_equal(row["features"], [1.0, 2.0])
