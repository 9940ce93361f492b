"""Long texts on their way to the model: the limits hold while they are tokenized."""

from __future__ import annotations

import json
import logging
import threading
import time

import httpx
import pytest

from linformer_kit.data import encode
from linformer_kit.data.tokenizer import encode_whole
from linformer_kit.serve import service
from linformer_kit.serve.api_errors import ApiError
from linformer_kit.serve.schema import (
    ChatBody,
    CompletionsBody,
    EmbeddingsBody,
    PredictBody,
    RerankBody,
    parse,
)

from .servers import Server, local, wait_for

WINDOW = 1000
TEXT = "The old dog runs over the hill. " * 3000  # about a hundred windows


@pytest.fixture
def windows(monkeypatch):
    """Small windows, each of which may take long; the list of their sizes."""

    class Sizes(list):
        seconds = 0.0

    sizes = Sizes()

    def slow(tokenizer, texts):
        sizes.extend(map(len, texts))
        if len(texts[0]) >= WINDOW:
            time.sleep(sizes.seconds)
        return encode_whole(tokenizer, texts)

    monkeypatch.setattr(encode, "WINDOW", WINDOW)
    monkeypatch.setattr(encode, "encode_whole", slow)
    return sizes


def stops_growing(sizes):
    """Whether no more windows are read."""
    time.sleep(0.5)  # the last one
    before = len(sizes)
    time.sleep(0.5)
    return len(sizes) == before


ROUTES = {
    "/predict": {"model": "classify", "input": TEXT},
    "/heads": {"model": "classify", "input": TEXT},
    "/v1/embeddings": {"model": "embed", "input": TEXT},
    "/v1/completions": {"model": "clm", "prompt": TEXT},
}


@pytest.mark.parametrize("route", ROUTES)
def test_the_time_limit_holds_while_a_text_is_tokenized(models, windows, route):
    windows.seconds = 0.1
    with local(models, time_limit=0.5) as server, server.client() as client:
        answer = client.post(route, json=ROUTES[route])
        assert answer.status_code == 408
        assert answer.json()["error"]["code"] == "time_limit"
        assert stops_growing(windows)
        short = {name: "a" if value is TEXT else value for name, value in ROUTES[route].items()}
        assert client.post(route, json=short).status_code == 200


@pytest.mark.parametrize("route", ROUTES)
def test_a_client_that_goes_stops_the_tokenizer(models, windows, route, caplog):
    windows.seconds = 0.1
    with local(models) as server, server.client() as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post(route, json=ROUTES[route], timeout=0.5)
        wait_for(lambda: server.guard.unanswered == 0)
        assert stops_growing(windows)
    assert not [one for one in caplog.records if one.exc_info]


def test_a_short_text_does_not_wait_for_a_long_one(models, windows):
    windows.seconds = 0.01
    answers = []
    with local(models) as server, server.client() as client, server.client() as other:
        body = {"model": "classify", "input": TEXT}
        long = threading.Thread(target=lambda: answers.append(other.post("/predict", json=body)))
        long.start()
        wait_for(lambda: len(windows) > 2)
        assert client.post("/predict", json=body | {"input": "a dog"}).status_code == 200
        assert not answers
        long.join(60)
    assert answers[0].status_code == 200


def test_too_many_tokens_are_refused_before_all_are_made(models, windows):
    with local(models, max_tokens=2000) as server, server.client() as client:
        answer = client.post("/predict", json={"model": "classify", "input": TEXT})
        assert answer.json()["error"]["code"] == "too_many_tokens"
        assert sum(windows) < len(TEXT) / 2
        windows.clear()
        several = {"model": "classify", "input": [TEXT[:WINDOW]] * 90}
        assert client.post("/predict", json=several).status_code == 413
        assert sum(windows) < len(TEXT) / 2


def test_a_text_without_an_end_of_a_word_is_refused(models, windows, monkeypatch):
    monkeypatch.setattr(service, "WIDEST", 8 * WINDOW)
    with local(models, max_tokens=100) as server, server.client() as client:
        body = {"model": "embed", "input": "x" + " " * 100_000 + "y"}
        answer = client.post("/predict", json=body)
        assert answer.status_code == 400
        assert "8,000 bytes in a row" in answer.json()["error"]["message"]
        assert sum(windows) < 50_000


def test_a_long_text_within_the_limits_is_read_whole(models, windows):
    tokenizer = models["tag"].predictor.tokenizer
    (whole,) = encode_whole(tokenizer, [TEXT])
    with local(models) as server, server.client() as client:
        body = {"model": "tag", "input": TEXT, "on_overflow": "chunk"}
        result = client.post("/predict", json=body).json()["results"][0]
    frame = models["tag"].predictor.task.frame.size
    assert result["tokens_total"] == result["tokens_read"] == len(whole.ids) + frame
    assert len(windows) > 50


MANY = 20_000
MISTAKES = [  # the keys before a list, and an item that is repeated in it
    (PredictBody, '"input"', "null"),
    (PredictBody, '"input"', '"a", 1'),
    (PredictBody, '"input"', "[null, null]"),
    (PredictBody, '"input": "a", "stop"', "1"),
    (EmbeddingsBody, '"model": "a", "input"', "-1"),
    (EmbeddingsBody, '"model": "a", "input"', "[-1]"),
    (CompletionsBody, '"model": "a", "prompt"', "1"),
    (ChatBody, '"model": "a", "messages"', "{}"),
    (RerankBody, '"model": "a", "query": "a", "documents"', "1"),
]


@pytest.mark.parametrize(("kind", "before", "item"), MISTAKES)
def test_the_mistakes_of_a_long_list_are_not_all_listed(kind, before, item):
    """Each would take a kilobyte."""
    body = "{" + before + ": [" + ", ".join([item] * MANY) + "]}"
    with pytest.raises(ApiError) as found:
        parse(kind, body.encode())
    assert found.value.status == 400
    assert found.value.__cause__.error_count() <= 8


@pytest.mark.parametrize("template", ["{%s}", '{"input": "a", "stop": [{%s}]}'])
@pytest.mark.parametrize("name", ['"k%d": 1', '"k": %d'])
def test_objects_with_many_keys_are_refused(template, name):
    body = template % ", ".join(name % number for number in range(MANY))
    with pytest.raises(ApiError) as found:
        parse(PredictBody, body.encode())
    assert found.value.__cause__ is None or found.value.__cause__.error_count() <= 8


def test_a_batch_that_does_not_end_is_left_alone(models, monkeypatch):
    """The server ends though the model still computes."""
    monkeypatch.setattr(service, "ENDING", 0.2)
    begun, may_end = threading.Event(), threading.Event()

    def stuck(*_):
        begun.set()
        may_end.wait(120)
        raise RuntimeError

    monkeypatch.setattr(models["classify"].predictor.task.__class__, "forward", stuck)
    with local(models, time_limit=0.5) as server, server.client() as client:
        answer = client.post("/predict", json={"model": "classify", "input": "a dog"})
        assert answer.status_code == 408
        assert begun.is_set()
        begin = time.monotonic()
    assert time.monotonic() - begin < 30
    may_end.set()


STUCK = """
import atexit, sys
import torch
from linformer_kit.cli import main
from linformer_kit.predict.tasks import Classify
from linformer_kit.serve import models

def forward(*_):
    x = torch.ones(64, 64)
    while True:
        x = x @ x

Classify.forward = forward
models.keeps_bits = lambda *_: False
atexit.register(lambda: print("cleaned up", file=sys.stderr))
main()
"""


def test_sigterm_ends_a_server_whose_model_does_not(runs, tmp_path):
    program = tmp_path / "stuck.py"
    program.write_text(STUCK)
    folder = str(runs("classify").path)
    server = Server(folder, "--time-limit", "1", program=(str(program),))
    with server.client() as client:
        assert client.post("/predict", json={"input": "a dog"}).status_code == 408
    assert server.terminate() == 0
    assert server.counts() == (1, 1, 0)
    assert server.said.endswith("cleaned up\n")


def test_sigterm_ends_a_server_that_tokenizes(runs):
    server = Server(f"tag={runs('tag').path}", "--time-limit", "2", "--max-tokens", "100000000")
    body = json.dumps({"input": "word " * 3_000_000, "on_overflow": "truncate"})
    statuses = []

    def ask():
        with server.client() as client:
            headers = {"content-type": "application/json"}
            answer = client.post("/predict", content=body, headers=headers)
            statuses.append(answer.status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    with server.client() as client:
        accepted = "linformer_requests_accepted 1.0"
        wait_for(lambda: accepted in client.get("/metrics").text)
    assert server.terminate() == 0
    asking.join(60)
    assert statuses in ([408], [200])  # if the machine is fast
    assert "Traceback" not in server.said


def test_a_request_that_is_cut_off_at_the_end_is_answered(models, windows, caplog, monkeypatch):
    """uvicorn cancels what is left when its own patience ends, here after a second."""
    monkeypatch.setattr("linformer_kit.serve.server.GRACE", -120.0)
    windows.seconds = 0.2
    answers = []
    with local(models, time_limit=61) as started, started.client() as client:
        body = {"model": "classify", "input": TEXT}
        asking = threading.Thread(target=lambda: answers.append(client.post("/predict", json=body)))
        asking.start()
        wait_for(lambda: len(windows) > 1)
        started.stop()
        asking.join(60)
    assert answers[0].status_code == 503
    assert not [one for one in caplog.records if one.exc_info and one.levelno >= logging.ERROR]
