"""Limits, the token, hosts and origins, the headers of every answer, and a full queue."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from linformer_kit.errors import UserError
from linformer_kit.serve.settings import Settings

from .servers import local, wait_for

TOKEN = "a-token-of-some-length"
LONG = {"model": "clm", "input": "The ", "max_new_tokens": 90_000, "stream": True}


def post(client, path="/predict", **body):
    return client.post(path, json=body)


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture(scope="module")
def small(models):
    """A server with small limits."""
    with local(
        models, max_body=2000, max_tokens=200, max_new_tokens=90_000, max_inputs=3, queue=2
    ) as started:
        yield started


def test_each_limit_is_a_clear_4xx(small):
    with small.client() as client:
        assert code(post(client, model="classify", input="a" * 3000)) == (413, "body_too_large")
        chunked = client.post(
            "/predict",
            content=(b'{"input": "' + b"a" * 3000 for _ in range(2)),
            headers={"content-type": "application/json"},
        )
        assert code(chunked) == (413, "body_too_large")
        assert code(post(client, model="classify", input="a" * 300)) == (413, "too_many_tokens")
        assert code(post(client, model="classify", input=["a"] * 4)) == (413, "too_many_inputs")
        answer = post(client, model="clm", input="a", max_new_tokens=90_001)
        assert code(answer) == (413, "too_many_tokens")
        assert "--max-new-tokens" in answer.json()["error"]["message"]


def test_a_full_queue_is_429_and_a_client_that_goes_makes_room(small):
    with small.client() as client, small.client() as other:
        with client.stream("POST", "/predict", json=LONG) as one, \
                other.stream("POST", "/predict", json=LONG) as two:  # fmt: skip
            lines = [one.iter_lines(), two.iter_lines()]  # a generator that ends closes its stream
            assert all(next(each).startswith("data: ") for each in lines)
            with small.client() as third:
                answer = post(third, model="classify", input="a")
                assert code(answer) == (429, "queue_full")
                assert 1 <= int(answer.headers["retry-after"]) <= 600
                assert third.get("/health").status_code == 200
        wait_for(lambda: small.guard.unanswered == 0)
        with small.client() as third:
            assert post(third, model="classify", input="a").status_code == 200


def test_a_short_request_does_not_wait_for_a_long_generation(server):
    with server.client() as client, server.client() as other:
        with client.stream("POST", "/predict", json=LONG) as stream:
            lines = stream.iter_lines()
            next(lines)
            begin = time.monotonic()
            assert post(other, model="embed", input="The old dog").status_code == 200
            waited = time.monotonic() - begin
            written = next(line for line in lines if line)
        assert "done" not in written  # the long one goes on
        assert waited < 10


def test_the_time_limit_is_408(models):
    with local(models, time_limit=0.2) as started, started.client() as client:
        body = {**LONG, "stream": False}
        assert code(client.post("/predict", json=body)) == (408, "time_limit")
        lines = client.post("/predict", json=LONG).text.split("\n\n")
        assert '"code":"time_limit"' in lines[-3]
        assert lines[-2] == "data: [DONE]"


def test_a_body_that_does_not_come_is_given_up(models):
    with local(models, body_limit=0.3) as started:
        host, port = started.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(
                b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n"
                b"content-type: application/json\r\n\r\n{"
            )
            assert b" 408 " in raw.recv(1000).partition(b"\r\n")[0]
        assert started.guard.unanswered == 0


def test_the_token_is_needed_everywhere_but_for_the_page_and_health(models):
    with local(models, token=TOKEN) as started:
        with started.client() as client:
            for path in ("/", "/docs", "/openapi.json", "/health", "/ready", "/page/docs.css"):
                assert client.get(path).status_code == 200
            for path in ("/v1/models", "/metrics", "/nothing"):
                assert code(client.get(path)) == (401, "invalid_token")
            answer = post(client, model="classify", input="a")
            assert code(answer) == (401, "invalid_token")
        for header in (f"Bearer {TOKEN}x", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}"):
            with started.client(headers={"authorization": header}) as client:
                assert client.get("/v1/models").status_code == 401
        with started.client(headers={"authorization": f"Bearer {TOKEN}"}) as client:
            assert client.get("/v1/models").status_code == 200
            assert post(client, model="classify", input="a").status_code == 200


def test_foreign_names_and_origins_are_refused(client, server):
    assert client.get("/health", headers={"host": "localhost:1"}).status_code == 200
    assert client.get("/health", headers={"host": "[::1]:8000"}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example:80", "[", ""):
        answer = client.get("/v1/models", headers={"host": host})
        assert answer.status_code in (400, 403)
    assert code(client.get("/", headers={"host": "evil.example"})) == (403, "host_not_allowed")
    own = {"origin": server.url}
    assert client.get("/v1/models", headers=own).status_code == 200
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        answer = client.get("/v1/models", headers={"origin": origin})
        assert code(answer) == (403, "origin_not_allowed")
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    preflight = client.options("/predict", headers=asked)
    assert "access-control-allow-origin" not in preflight.headers


def test_every_answer_has_the_headers_of_a_page_that_loads_nothing_foreign(client):
    for path in ("/", "/docs", "/v1/models", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    for path in ("/", "/docs"):
        page = client.get(path).text
        assert "<script>" not in page
        assert "http:" not in page.replace("http://www.w3.org", "")
        assert "https:" not in page


def test_no_path_of_a_request_is_opened(client):
    for path in (
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page/..%2fapp.py",
        "/page//etc/passwd",
    ):
        assert client.get(path).status_code == 404


def test_a_token_is_needed_to_listen_elsewhere():
    with pytest.raises(UserError, match="needs a token"):
        Settings(host="0.0.0.0")
    with pytest.raises(UserError, match="at least 16"):
        Settings(token="short")
    for token in (f" {TOKEN}", f"{TOKEN} "):
        with pytest.raises(UserError, match="must not begin or end with a space"):
            Settings(token=token)
    assert Settings(host="0.0.0.0", token=TOKEN).host == "0.0.0.0"
    assert Settings(host="::1").token is None


def test_logs_and_metrics_have_no_contents(server, client, caplog):
    with caplog.at_level("INFO", logger="linformer_kit.serve"):
        post(client, model="classify", input="a secret sentence")
        client.get("/v1/models?secret=1")
        client.get("/secret")
        wait_for(lambda: len(caplog.records) >= 3)
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("POST /predict 200") for line in lines)
    metrics = client.get("/metrics").text
    assert 'linformer_requests_total{route="/predict",status="200"}' in metrics
    assert "secret" not in metrics + "".join(lines)


def test_concurrent_answers_have_the_bits_of_serial_ones(server):
    words = ["The", "old", "dog", "runs", "over", "the", "hill", "two", "times", "and", "looks"]
    texts = [" ".join(words[: 1 + n % 11]) + " ." * (n % 3) for n in range(12)]
    tasks = ("classify", "tag", "embed", "mlm")
    asked = [
        {"model": task, "input": text + (" <mask>" if task == "mlm" else "")}
        for task in tasks
        for text in texts
    ]
    answers = {}

    def all_of(into, workers):
        numbers = iter(range(len(asked)))
        lock = threading.Lock()

        def work():
            with server.client() as client:
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    answer = client.post("/predict", json=asked[number])
                    into[number] = answer.json()["results"]

        threads = [threading.Thread(target=work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    all_of(serial := {}, 1)
    all_of(answers, 16)
    assert answers == serial
