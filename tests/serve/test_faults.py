"""A server that ends under load, clients that go, a folder that is removed, malformed bodies."""

from __future__ import annotations

import json
import shutil
import threading

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linformer_kit.machine_memory import release_freed_memory
from linformer_kit.serve import service
from linformer_kit.serve.models import load_models

from .servers import Server, local, wait_for

TEXT = "The old dog runs over the hill two times. "


def test_sigterm_under_load_loses_nothing_that_was_accepted(runs):
    server = Server(f"classify={runs('classify').path}", f"clm={runs('clm').path}", "--quiet")
    answered, broken = [], []
    stopping = threading.Event()

    def work(number):
        body = {"model": "classify", "input": TEXT * (1 + number % 7)}
        while not stopping.is_set():
            try:
                with server.client() as client:  # a new connection: none is closed while idle
                    answer = client.post("/predict", json=body)
                answered.append(answer.status_code)
            except httpx.ConnectError:
                return  # not accepted
            except httpx.HTTPError as error:
                broken.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    with server.client() as client:
        body = {"model": "clm", "input": "The ", "max_new_tokens": 300, "stream": True}
        with client.stream("POST", "/predict", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            for thread in threads:
                thread.start()
            wait_for(lambda: len(answered) > 12)
            code = []
            ending = threading.Thread(target=lambda: code.append(server.terminate()))
            ending.start()
            rest = [line for line in lines if line]
    ending.join(60)
    stopping.set()
    for thread in threads:
        thread.join(20)
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["tokens_written"] > 100
    assert code == [0]
    assert set(answered) == {200}
    accepted, finished, given_up = server.counts()
    assert given_up == 0
    assert accepted == finished == len(answered) + 1
    assert "Traceback" not in server.said


def test_clients_that_go_leave_nothing_behind(server):
    body = {"model": "clm", "input": "The ", "max_new_tokens": 90_000}
    with server.client() as client:
        with client.stream("POST", "/predict", json={**body, "stream": True}) as stream:
            next(stream.iter_lines())
        with pytest.raises(httpx.ReadTimeout):
            client.post("/predict", json=body, timeout=0.3)
        wait_for(lambda: server.guard.unanswered == 0)
        assert client.post("/predict", json={"model": "classify", "input": "a"}).status_code == 200


def test_a_folder_that_is_removed_changes_no_answer(runs, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(runs("embed").path, folder)
    models = load_models([f"embed={folder}"], say=lambda line: None)
    with local(models) as started, started.client() as client:
        body = {"model": "embed", "input": TEXT}
        before = client.post("/predict", json=body).json()["results"]
        shutil.rmtree(folder)
        assert client.post("/predict", json=body).json()["results"] == before
        assert client.get("/v1/models/embed").status_code == 200


def test_freed_memory_is_given_back_while_serving(models, monkeypatch):
    released = []
    monkeypatch.setattr(service, "RELEASE_EVERY", 0.0)
    monkeypatch.setattr(
        service, "release_freed_memory", lambda: released.append(release_freed_memory())
    )
    with local({"embed": models["embed"]}) as started, started.client() as client:
        for _ in range(3):
            assert client.post("/predict", json={"input": TEXT}).status_code == 200
    assert len(released) >= 3


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["mlm", "classify", "tag", "embed", "clm", "<mask>", "a <mask> b", "base64"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from([
    "model", "input", "prompt", "top", "max_new_tokens", "max_tokens", "temperature", "top_p",
    "seed", "stop", "redact", "size", "on_overflow", "encoding_format", "dimensions", "user",
    "stream_options", "n", "echo", "logprobs", "suffix", "best_of", "logit_bias",
    "presence_penalty", "layer", "head", "length", "messages", "query", "documents", "top_n",
    "return_documents", "max_completion_tokens", "tools", "response_format",
])  # fmt: skip
NAMES = st.sampled_from(["mlm", "classify", "tag", "embed", "clm", "none"])
TEXTS = st.text(max_size=60) | st.lists(st.text(max_size=20), max_size=3)


def encoded(*parts):
    return json.dumps({name: value for part in parts for name, value in part.items()}).encode()


BODIES = st.one_of(
    st.builds(encoded, st.fixed_dictionaries({"model": NAMES, "input": TEXTS})),
    st.builds(encoded, st.fixed_dictionaries({"model": NAMES, "prompt": TEXTS, "n": st.just(1)})),
    st.builds(
        encoded,
        st.fixed_dictionaries({"model": NAMES, "input": TEXTS}),
        st.dictionaries(KEYS.filter(lambda name: "max" not in name), JUNK, max_size=3),
    ),
    st.builds(
        encoded,
        st.fixed_dictionaries({"model": NAMES, "query": st.text(max_size=20), "documents": TEXTS}),
        st.dictionaries(KEYS.filter(lambda name: "max" not in name), JUNK, max_size=1),
    ),
    st.builds(encoded, st.dictionaries(KEYS | st.text(max_size=8), JUNK, max_size=6)),
    st.binary(max_size=80),
    st.sampled_from([
        b"[" * 5000,
        b'{"input": "\\ud800", "model": "classify"}',
        b'{"input": [[1e999]], "model": "classify"}',
    ]),
)  # fmt: skip
ROUTES = st.sampled_from([
    "/predict", "/v1/embeddings", "/v1/completions", "/v1/chat/completions", "/v1/rerank", "/heads",
])  # fmt: skip
TYPES = st.sampled_from(
    ["application/json"] * 8 + ["multipart/form-data; boundary=x", "multipart/form-data", "text/x"]
)


def fuzz(server, count):
    seen = set()
    with server.client() as client:

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(ROUTES, TYPES, BODIES)
        def one(route, kind, body):
            answer = client.post(route, content=body, headers={"content-type": kind})
            seen.add(answer.status_code)
            assert answer.status_code in (200, 400, 404, 413, 415), (route, kind, body, answer.text)
            assert "Traceback" not in answer.text
            if answer.status_code != 200:
                error = answer.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["message"]

        one()
        assert client.get("/ready").status_code == 200
        answer = client.post("/predict", json={"model": "classify", "input": TEXT})
        assert answer.status_code == 200
    return seen


def test_malformed_bodies_are_4xx_and_the_server_goes_on(server):
    assert fuzz(server, 300) >= {200, 400, 415}


@pytest.mark.slow
def test_ten_thousand_malformed_bodies(server):
    assert fuzz(server, 10_000) >= {200, 400, 404, 415}
