"""Answers of a run's model, against the model called directly."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from linformer_kit.config.load import load
from linformer_kit.data.overflow import Reading
from linformer_kit.errors import UserError
from linformer_kit.models import LinformerConfig, LinformerForSequenceClassification
from linformer_kit.models.load import load_pretrained, load_tokenizer
from linformer_kit.predict.answers import Answer, Options, Predictor, predict_texts
from linformer_kit.training.build import MODELS

from ..train import tiny


def parts(folder):
    path = folder.model_folder("best")
    return load_pretrained(MODELS[folder.config().task], path).eval(), load_tokenizer(path)


def answers(folder, *texts, **options):
    return list(predict_texts(folder, texts, options=Options(**options)))


@torch.no_grad()
def test_every_mask_is_filled_with_its_most_likely_tokens(runs):
    model, tokenizer = parts(runs("mlm"))
    text = "The <mask>ld d<mask>g runs."
    (answer,) = answers(runs("mlm"), text, top=3)
    batch = tokenizer(text, return_tensors="pt")
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0].double()
    expected = []
    for place, token in enumerate(batch["input_ids"][0].tolist()):
        if token == tokenizer.mask_token_id:
            likely = logits[place].exp() / logits[place].exp().sum()
            best = sorted(range(len(likely)), key=lambda i: -likely[i])[:3]
            expected += [(tokenizer.decode([i]), likely[i].item()) for i in best]
    assert [each["token"] for each in answer.answers] == [token for token, _ in expected]
    scores = [score for _, score in expected]
    assert [each["score"] for each in answer.answers] == pytest.approx(scores, rel=1e-4)


@torch.no_grad()
def test_labels_come_with_probabilities_in_descending_order(runs):
    model, tokenizer = parts(runs("classify"))
    (answer,) = answers(runs("classify"), "The old dog runs.", top=9)
    batch = tokenizer("The old dog runs.", return_tensors="pt")
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0].double()
    expected = {model.config.id2label[i]: p for i, p in enumerate(logits.softmax(-1).tolist())}
    assert {each["text"]: each["score"] for each in answer.answers} == pytest.approx(
        expected, rel=1e-4
    )
    scores = [each["score"] for each in answer.answers]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1.0, rel=1e-4)


@torch.no_grad()
def test_a_text_is_continued_greedily_token_by_token(runs):
    model, tokenizer = parts(runs("clm"))
    (answer,) = answers(runs("clm"), "The old ", max_new_tokens=5)
    ids = tokenizer("The old ", return_tensors="pt")["input_ids"]
    for _ in range(5):
        best = model(ids).logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat((ids, best), dim=1)
        if best.item() == model.generation_config.eos_token_id:
            break
    assert answer.answers == [{"text": tokenizer.decode(ids[0], skip_special_tokens=True)}]


def test_a_drawn_continuation_follows_the_seed(runs):
    drawn = [
        answers(runs("clm"), "The ", temperature=2.0, seed=seed, max_new_tokens=8)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    for temperature in (1e-320, -1.0, 1e9, float("nan")):
        with pytest.raises(UserError, match="temperature must be 0, which"):
            Options(temperature=temperature)


def test_a_prompt_beyond_the_trained_length_gets_no_warning_of_transformers(runs, monkeypatch):
    """A decoder without positions has no limit."""
    said: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.append(record.getMessage()))
    logging.Logger.warning_once.cache_clear()  # type: ignore[attr-defined]  (of transformers)
    folder = runs("clm")
    library = logging.getLogger("transformers")
    monkeypatch.setattr(library, "level", logging.WARNING)  # a training before may have raised it
    library.addHandler(handler)
    try:
        (answer,) = answers(folder, "The old dog runs. " * 5, max_new_tokens=2)
    finally:
        library.removeHandler(handler)
    assert answer.problem is None
    assert said == []


def test_a_translation_is_one_text_of_at_most_the_tokens_asked_for(runs):
    (answer,) = answers(runs("translate"), "The old dog", max_new_tokens=3)
    _, tokenizer = parts(runs("translate"))
    (translation,) = answer.answers
    assert len(tokenizer(translation["text"], add_special_tokens=False)["input_ids"]) <= 3


def test_an_input_without_an_answer_says_why_and_the_others_are_answered(runs):
    texts = ["no mask", "a <mask>", "  ", "<mask>" + "a" * 40]
    found = list(predict_texts(runs("mlm"), texts, options=Options(), on_overflow="error"))
    assert [answer.given for answer in found] == texts
    assert [answer.problem is None for answer in found] == [False, True, False, False]
    assert "must hold <mask>: got 'no mask'" in found[0].problem
    assert "the input is empty" in found[2].problem
    assert "at most data.max_length = 32 tokens: got 4" in found[3].problem


def test_texts_are_answered_as_they_come(runs):
    def endless():
        while True:
            yield "a <mask>"

    answering = predict_texts(runs("mlm"), endless(), options=Options(top=1))
    assert next(answering) == next(answering)


def test_an_answer_for_programs_and_for_people():
    scored = Answer("x", [{"text": "yes", "score": 0.75}, {"text": "no", "score": 0.25}])
    assert scored.values() == {"input": "x", "answers": scored.answers}
    assert scored.text() == "0.750  yes\n0.250  no"
    assert Answer("x", [{"text": "made"}]).text() == "made"
    assert Answer("x", [], "too long").values() == {"input": "x", "error": "too long"}
    read = Answer("x", [{"text": "made"}], reading=Reading("truncate", 5, 9))
    assert read.values() == {"input": "x", "answers": read.answers} | {
        "tokens_read": 5,
        "tokens_total": 9,
    }


def features_predictor(folder):
    """An untrained classifier of sequences with two numbers at each position."""
    torch.manual_seed(0)
    model = LinformerForSequenceClassification(
        LinformerConfig(
            feature_size=2, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=32, k=4, pooling="mean", num_labels=2,
        )
    ).eval()  # fmt: skip
    config = load(tiny.write(folder, "classify"))
    source = SimpleNamespace(config=lambda: config, model_folder=lambda which: folder)
    return Predictor(source, options=Options(), model=model)


@pytest.mark.parametrize("text", ["[1, 2, 3, 4]", "[[1, 2, 3, 4]]", '[["1", "2"]]', "[[true, 1]]"])
def test_features_of_another_shape_or_kind_are_refused(tmp_path, text):
    """As in training: four numbers in a row are four positions, not two of two."""
    predictor = features_predictor(tmp_path)
    predictor.question("[[1, 2], [3, 4.5]]")
    with pytest.raises(UserError, match=r"positions with 2 finite number\(s\) each: got"):
        predictor.question(text)


def test_an_answer_that_is_not_finite_is_none(tmp_path):
    predictor = features_predictor(tmp_path)
    asked = ["[[1, 2]]", "[[1e30, -1e30]]", "[[3, 4]]"]
    first, second, third = predictor.answer([predictor.question(text) for text in asked])
    assert isinstance(second, UserError)
    assert "no finite answer" in str(second)
    assert all(0 < each["score"] < 1 for each in (*first, *third))
