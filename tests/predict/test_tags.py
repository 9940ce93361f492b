"""Spans that a trained model finds: the scores of `evaluate`, and offsets into the text given."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
import yaml

from linformer_kit.config.load import load
from linformer_kit.data.builtin import letters
from linformer_kit.data.corpus import Corpus
from linformer_kit.evaluate.evaluation import evaluate_run
from linformer_kit.predict.answers import Options, predict_texts
from linformer_kit.train.run import train

from ..train import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model that has learned a little, of letters that are longer than its rows."""
    folder = tmp_path_factory.mktemp("tag")
    path = tiny.write(folder, "tag", steps=60, eval_every=60, save_every=60, lr=0.02)
    values = yaml.safe_load(path.read_text())
    made = letters.records({"documents": 150, "max_sentences": 6}, 0)
    lines = [json.dumps({"text": one["text"], "spans": one["spans"]}) for one in made]
    (folder / "spans.jsonl").write_text("\n".join(lines))
    values["data"] |= {"max_length": 64, "test_share": 0.3}
    values["tokenizer"] = {"kind": "bpe", "vocab_size": 400}
    values["model"] |= {"k": 16, "neighbours": 5, "hidden_size": 32, "embedding_norm": True}
    path.write_text(yaml.safe_dump(values))
    with torch.enable_grad():
        made = train(load(path))
    assert made is not None
    return made


def found_in(run, text, **options):
    (answer,) = predict_texts(run, [text], options=Options(**options))
    return answer


def test_the_spans_of_predict_are_those_that_evaluate_scores(run):
    records = list(Corpus.of(run.config()).part("test"))
    assert max(len(record["text"]) for record in records) > 400  # several pieces
    right = predicted = real = 0
    texts = [record["text"] for record in records]
    found = predict_texts(run, texts, options=Options())
    for record, answer in zip(records, found, strict=True):
        guess = {(a["start"], a["end"], a["label"]) for a in answer.answers}
        truth = {tuple(span) for span in record["spans"]}
        right, predicted, real = (
            right + len(guess & truth),
            predicted + len(guess),
            real + len(truth),
        )
    metrics = evaluate_run(run)["metrics"]
    assert right > 20
    assert metrics["recall"] == pytest.approx(right / real, abs=0.005)
    # `predict` leaves out the second of two spans where pieces disagree; `evaluate` sees no other.
    assert metrics["precision"] == pytest.approx(right / predicted, abs=0.03)


def test_offsets_are_into_the_text_as_it_was_given(run):
    text = (
        " \r\n 👩‍💻 write to zoe\u0308.li@zanmar.org, e\u0301\r\nor Dr. Ada Kelson on 3 May 2027. "
    )
    answers = found_in(run, text).answers
    assert answers
    for answer in answers:
        assert answer["text"] == text[answer["start"] : answer["end"]]
        assert answer["text"].strip() == answer["text"] != ""
        assert 0 < answer["score"] <= 1


def test_a_long_text_is_read_to_its_end(run):
    letter = next(letters.records({"documents": 1, "min_sentences": 60, "max_sentences": 60}, 5))
    answers = found_in(run, letter["text"]).answers
    assert answers[-1]["start"] > 0.9 * len(letter["text"])
    assert all(a["end"] <= b["start"] for a, b in pairwise(answers))


def test_redacted_text(run):
    text = "Dear Ms. Ada Kelson, write to bo@zanmar.org."
    answer = found_in(run, text, redact=True)
    (hidden,) = answer.answers
    kept = text
    for one in reversed(hidden["spans"]):
        assert one["text"] == text[one["start"] : one["end"]]
        kept = f"{kept[: one['start']]}[{one['label']}]{kept[one['end'] :]}"
    assert hidden["text"] == answer.text() == kept


@pytest.mark.parametrize("policy", ["truncate", "chunk", "extend", "error"])
def test_what_was_read_is_said(run, policy):
    text = next(letters.records({"documents": 1}, 3))["text"]
    (answer,) = predict_texts(run, [text], options=Options(), on_overflow=policy)
    if policy == "error":
        assert "at most data.max_length = 64 tokens" in answer.problem
        return
    assert (answer.reading.unread > 0) == (policy == "truncate") == bool(answer.notes)
    ends = [one["end"] for one in answer.answers]
    assert (max(ends) > 0.8 * len(text)) == (policy != "truncate")


def test_spans_that_were_not_read_count_as_missed(run):
    whole = evaluate_run(run)["metrics"]
    cut = evaluate_run(run, on_overflow="truncate")["metrics"]
    assert sum(one["spans"] for one in cut["types"].values()) == sum(
        one["spans"] for one in whole["types"].values()
    )
    assert cut["recall"] < 0.6 * whole["recall"]
