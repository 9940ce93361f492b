"""POST /predict against the answers of `linformer predict` and of the model itself."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.predict.answers import Options, predict_texts

TEXTS = {
    "mlm": "The <mask>ld dog <mask>uns.",
    "classify": "The old dog runs over the hill two times, and over the river.",
    "tag": "The old dog runs over the hill two times. " * 4,
    "embed": "The old dog runs over the hill two times. " * 3,
    "translate": "The old dog",
}


def ask(client, expected=200, **body):
    answer = client.post("/predict", json=body)
    assert answer.status_code == expected, answer.text
    return answer.json()


def expected(runs, task, text, on_overflow=None, **options):
    (answer,) = predict_texts(
        runs(task), [text], options=Options(**options), on_overflow=on_overflow
    )
    assert answer.problem is None
    return answer


@pytest.mark.parametrize("task", TEXTS)
def test_every_task_answers_as_the_command_does(client, runs, task):
    answer = ask(client, model=task, input=TEXTS[task])
    (result,) = answer["results"]
    wanted = expected(runs, task, TEXTS[task])
    assert (result["tokens_read"], result["tokens_total"]) == (
        wanted.reading.tokens_read,
        wanted.reading.tokens_total,
    )
    assert result["notes"] == wanted.notes
    assert answer["tokens_read"] == result["tokens_read"]
    assert 0 < answer["seconds_computing"] <= answer["seconds"]
    assert len(result["answers"]) == len(wanted.answers)
    for one, two in zip(result["answers"], wanted.answers, strict=True):
        one.pop("mask", None)
        for name in ("score", "vector"):  # batches of other sizes may round differently
            if name in two:
                np.testing.assert_allclose(one.pop(name), two.pop(name), atol=1e-5)
        assert one == two


def test_a_text_is_continued_as_the_command_does_but_without_the_prompt(client, runs):
    answer = ask(client, model="clm", input="The old ", max_new_tokens=7)
    ((given,),) = [result["answers"] for result in answer["results"]]
    (whole,) = expected(runs, "clm", "The old ", max_new_tokens=7).answers
    assert "The old " + given["text"] == whole["text"]
    assert given["finish_reason"] in ("stop", "length")


def test_several_texts_are_answered_in_their_order(client):
    texts = ["The cat", "The old dog runs", "The cat", "A bird looks over the hill"]
    together = ask(client, model="classify", input=texts)["results"]
    alone = [ask(client, model="classify", input=text)["results"][0] for text in texts]
    assert together == alone


def test_answers_say_which_mask_they_fill(client):
    answer = ask(client, model="mlm", input=TEXTS["mlm"], top=3)
    assert [each["mask"] for each in answer["results"][0]["answers"]] == [0, 0, 0, 1, 1, 1]


def test_a_file_is_answered_as_its_text(client):
    text = "The old dog runs över the hill"
    sent = client.post(
        "/predict",
        files={"file": ("../../etc/passwd", text.encode())},
        data={"model": "classify", "top": "1", "on_overflow": "chunk"},
    )
    assert sent.status_code == 200, sent.text
    asked = ask(client, model="classify", input=text, top=1, on_overflow="chunk")
    assert sent.json()["results"] == asked["results"]


@pytest.mark.parametrize(
    ("files", "data", "message"),
    [
        ({"file": ("a", b"\xff\xfe\x00")}, {"model": "classify"}, "UTF-8"),
        ({"other": ("a", b"text")}, {"model": "classify"}, "named file"),
        ({"file": ("a", b"text")}, {"model": "classify", "top": "many"}, "top"),
        ({"file": ("a", b"text")}, {"model": "classify", "path": "/etc/passwd"}, "path"),
    ],
)
def test_forms_that_cannot_be_read_are_refused(client, files, data, message):
    answer = client.post("/predict", files=files, data=data)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"model": "classify", "input": "a", "temperature": 0}, "temperature", "no effect"),
        ({"model": "mlm", "input": "a <mask>", "redact": True}, "redact", "no effect"),
        ({"model": "clm", "input": "a", "seed": 0}, "seed", "temperature 0"),
        ({"model": "classify", "input": "a", "tpo": 1}, "tpo", "not permitted"),
        ({"model": "classify", "input": ["a", " "]}, "input[1]", "empty"),
        ({"model": "classify", "input": []}, "input", "at least one"),
        ({"model": "mlm", "input": "no mask"}, "input", "<mask>"),
        ({"model": "clm", "input": ["a", "b"]}, "input", "one text"),
        ({"model": "classify", "input": "a", "top": 10**30}, "top", ""),
        ({"model": "clm", "input": "a", "on_overflow": "chunk"}, None, "no meaning"),
        ({"model": "embed", "input": "a", "size": 3}, "size", "must be one of 16"),
        ({"model": "classify", "input": [[1.0]]}, "input", "texts"),
        ({"input": "a"}, "model", "name a model"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(client, body, param, message):
    error = ask(client, expected=400, **body)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_request"
    assert error["param"] == param
    assert message in error["message"]


def test_an_unknown_model_is_404_and_names_the_models(client):
    error = ask(client, expected=404, model="\U0001f600/../x", input="a")["error"]
    assert error["code"] == "model_not_found"
    assert "classify" in error["message"]


def test_long_texts_follow_the_policy_of_the_request(client, runs):
    text = "The old dog runs over the hill. " * 10
    for policy in ("truncate", "chunk", "extend"):
        answer = ask(client, model="classify", input=text, on_overflow=policy)
        wanted = expected(runs, "classify", text, on_overflow=policy)
        assert answer["tokens_read"] == wanted.reading.tokens_read
        scores = [each["score"] for each in answer["results"][0]["answers"]]
        np.testing.assert_allclose(scores, [each["score"] for each in wanted.answers], atol=1e-6)
    error = ask(client, expected=400, model="classify", input=text, on_overflow="error")["error"]
    assert "at most" in error["message"]


def test_the_estimate_of_full_attention_grows_with_the_square(client):
    short = ask(client, model="embed", input="The old dog " * 100)["full_attention"]
    long = ask(client, model="embed", input="The old dog " * 1000)["full_attention"]
    assert 8 < long["flops"] / short["flops"] < 12
    assert long["flops_full"] / short["flops_full"] > 50
    assert long["seconds_estimate"] > 0


def test_models_are_described(client, server):
    found = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
    assert {name: each["task"] for name, each in found.items()} == {
        "mlm": "fill", "classify": "classify", "tag": "tag", "embed": "embed", "clm": "generate",
        "translate": "translate",
    }  # fmt: skip
    assert found["classify"]["labels"] == ["no", "yes"]
    assert found["tag"]["labels"] == ["animal"]
    assert found["mlm"]["mask_token"] == "<mask>"
    assert found["embed"]["dimensions"] == 16
    assert found["clm"]["max_length"] is None
    assert "chunk" not in found["clm"]["on_overflow"]["allowed"]
    assert client.get("/v1/models/tag").json() == found["tag"]
