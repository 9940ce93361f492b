"""Requests as no client of a library sends them: headers, methods, parts of requests, numbers."""

from __future__ import annotations

import http.client
import json
import logging
import socket
from contextlib import contextmanager

import pytest

from .servers import local, wait_for

TOKEN = "a token of some length"
LIMIT = 1.5  # seconds for the header of a request, and for its body
GENERATE = {"model": "clm", "input": "The ", "max_new_tokens": 2}
SECURITY = ("content-security-policy", "x-content-type-options", "referrer-policy")


class Kept(logging.Handler):
    """What a server logs, tracebacks included."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(logging.Formatter().format(record))


@pytest.fixture(scope="module")
def log():
    """What the servers of this file log; at the end, no mistake of their own is among it."""
    handler = Kept()
    names = ("uvicorn", "asyncio", "linformer_kit.serve")
    loggers = [logging.getLogger(name) for name in names]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(logging.INFO)
    yield handler.lines
    for each, level in zip(loggers, levels, strict=True):
        each.removeHandler(handler)
        each.setLevel(level)
    assert [line for line in handler.lines if "Traceback" in line or "Error" in line] == []


@pytest.fixture(scope="module")
def hostile(models, log):
    """A server for every request here, which still answers at the end."""
    chosen = {name: models[name] for name in ("classify", "clm", "embed")}
    with local(chosen, body_limit=LIMIT, time_limit=20) as started:
        yield started
        with started.client() as client:
            assert client.post("/predict", json=GENERATE).status_code == 200
        wait_for(lambda: started.guard.unanswered == 0)


@pytest.fixture(scope="module")
def closed(models, log):
    """A server with a token."""
    with local({"clm": models["clm"]}, token=TOKEN) as started:
        yield started


@contextmanager
def connected(server):
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        yield raw


def read(raw, method="GET"):
    """The next answer: its status and its text, after what every answer must have."""
    answer = http.client.HTTPResponse(raw, method=method)
    answer.begin()
    text = answer.read().decode()
    assert answer.status < 500, text
    assert "Traceback" not in text
    for name in SECURITY:
        assert answer.headers.get(name), (name, answer.status)
    if answer.status >= 400 and method != "HEAD":
        error = json.loads(text)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
    return answer, text


def status_of(server, data, method="GET"):
    with connected(server) as raw:
        raw.sendall(data)
        return read(raw, method)[0].status


def request(*lines, line="GET /v1/models HTTP/1.1", body=b"", host="localhost"):
    hosts = [] if host is None else [f"Host: {host}"]
    return "\r\n".join([line, *hosts, *lines, "", ""]).encode("latin-1") + body


def post(path, body, *lines, kind="application/json"):
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = f"Content-Length: {len(sent)}"
    line = f"POST {path} HTTP/1.1"
    return request(f"Content-Type: {kind}", size, *lines, line=line, body=sent)


HOSTS = [
    "[::1].evil.com", "evil.com:80@localhost", "localhost@evil.com", "evil.com", "evil.com:8000",
    "localhost.evil.com", "127.0.0.1.evil.com", "127.0.0.1:80.evil.com", "[::1", "::1]", "[", "]",
    "[]", "[::1]x", "[::1]:x", "[::1%25lo]", "[127.0.0.1]evil", "localhost:80:80", "localhost:x",
    "localhost:-1", "localhost:999999", "localhost/evil.com", "localhost?evil", "localhost#evil",
    "localhost\\evil.com", "local host", "localhost,evil.com", "http://localhost", "//localhost",
    "0", "0.0.0.0", "0x7f.1", "2130706433", "127.1", "192.168.0.1", "[::]", "[fe80::1]", "\xe9vil",
    "%6cocalhost", "localhost.", "", "a" * 5000,
]  # fmt: skip
ORIGINS = [
    "http://[", "http://[::1", "http://]", "http://[x]", "http://[::1]:x", "null", "NULL", "file://",
    "http://", "https://", "://localhost", "localhost", "//localhost", "http:localhost",
    "http://localhost/", "http://localhost/x", "http://localhost:80", "http://localhost@evil.com",
    "http://evil.com@localhost", "http://evil.com#localhost", "http://evil.com?localhost",
    "http://localhost.evil.com", "ftp://localhost", "javascript://localhost",
    "chrome-extension://localhost", "data:text/html,x", "http://loc\xe4lhost", "http://localhost,x",
    "http://localhost http://evil.com", "http://\u00bd".encode().decode("latin-1"), "http://%",
    "http://localhost:99999999999999999999", "http://\ufe6a".encode().decode("latin-1"),
    "", "http://" + "[" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_not_of_this_machine(hostile, host):
    assert status_of(hostile, request(host=host)) in (400, 403)


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_origin_that_is_not_the_host(hostile, closed, origin):
    header = f"Origin: {origin}"
    assert status_of(hostile, request(header)) == 403
    assert status_of(hostile, request(header, line="GET / HTTP/1.1")) == 403
    assert status_of(closed, request(header, host="any.example")) == 403


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost", "http://localhost"), ("LOCALHOST:80", "http://localhost:80"),
        ("[::1]:8000", "http://[::1]:8000"), ("127.0.0.1", "https://127.0.0.1"),
    ],
)  # fmt: skip
def test_the_own_page_is_answered(hostile, host, origin):
    assert status_of(hostile, request(f"Origin: {origin}", host=host)) == 200


AUTHORIZATIONS = [
    "", "Bearer", "Bearer ", TOKEN, f"Basic {TOKEN}", f"Bearer{TOKEN}", f"Bearer {TOKEN}x",
    f"Bearer {TOKEN[:-1]}", f"Bearer Bearer {TOKEN}", f"Bearer {TOKEN.upper()}", "Bearer \xff\xfe",
    f"Bearer {TOKEN}, Bearer {TOKEN}", "Bearer " + "x" * 9000, "Bearer a\ttoken of some length",
    "Digest username=x", f"Bearer '{TOKEN}'", "Bearer null", "\x7f",
]  # fmt: skip


@pytest.mark.parametrize("value", AUTHORIZATIONS)
def test_a_token_that_is_not_the_token(closed, value):
    assert status_of(closed, request(f"Authorization: {value}", host="any.example")) in (400, 401)


def test_the_token_is_read_between_any_spaces(closed):
    assert status_of(closed, request(f"Authorization:   bearer   {TOKEN}  ")) == 200


METHODS = [
    "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "get", "X", "A" * 200, "M-SEARCH",
    "!#$%&'*+-.^_`|~", "SECRET", "PRI", "HEAD", "OPTIONS",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_no_route_has_is_not_logged_as_sent(hostile, log, method):
    for path in ("/v1/models", "/predict", "/"):
        data = request(line=f"{method} {path} HTTP/1.1")
        assert status_of(hostile, data, method) == 405
    known = ("PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "HEAD", "OPTIONS")
    logged = method if method in known else "other"
    wait_for(lambda: [line for line in log if line.startswith(f"{logged} ")])
    assert method in known or not [line for line in log if line.startswith(f"{method} ")]


TARGETS = [
    "/nothing", "//", "/%00", "/%ff%fe", "/..", "/../../etc/passwd", "/page/%2e%2e%2fapp.py", "*",
    "http://evil.com/v1/models", "http://[", "evil.com:443", "/predict/", "/v1/models/%00",
    "/v1/models/" + "a" * 3000, "/v1/models/../..", "/v1//models", "/page/", "/page/%0d%0aX:y",
    "/v1/models/%f0%9f%98%80", "/;", "/{name}", "/v1/models/a%2fb", "/DOCS", "/openapi.json/x",
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_is_no_route(hostile, target):
    assert status_of(hostile, request(line=f"GET {target} HTTP/1.1")) == 404


RAW = {
    "an-empty-line": b"\r\n",
    "not-http": b"hello\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no-version": b"GET /\r\n\r\n",
    "a-space-too-many": b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a-space-in-the-target": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a-tab": b"GET\t/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no-method": b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "method-in-brackets": b"(GET) / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a-byte-in-the-target": b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a-null-in-the-target": b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no-host": b"GET / HTTP/1.1\r\n\r\n",
    "no-host-1.0": b"GET / HTTP/1.0\r\n\r\n",
    "two-hosts": request("Host: localhost"),
    "a-foreign-second-host": request("Host: evil.com"),
    "header-without-colon": request("Header"),
    "header-without-name": request(": value"),
    "space-before-the-colon": request("Origin : http://localhost"),
    "space-in-a-name": request("Ori gin: http://localhost"),
    "null-in-a-value": request("X: a\0b"),
    "carriage-return-in-a-value": request("X: a\rb"),
    "control-in-a-name": request("X\x01: a"),
    "letters-in-a-name": request("\xe9: a"),
    "folded-first-line": b"GET / HTTP/1.1\r\n folded\r\nHost: localhost\r\n\r\n",
    "large-header": request("X: " + "a" * 70_000),
    "many-headers": request(*(f"X{number}: a" for number in range(9_000))),
    "two-origins": request("Origin: http://localhost", "Origin: http://evil.com"),
    "two-tokens": request("Authorization: Bearer a", "Authorization: Bearer b"),
    "two-types": post("/predict", GENERATE, "Content-Type: text/plain"),
    "negative-length": request("Content-Length: -1", line="POST /predict HTTP/1.1"),
    "signed-length": request("Content-Length: +1", line="POST /predict HTTP/1.1"),
    "length-in-hex": request("Content-Length: 0x1", line="POST /predict HTTP/1.1"),
    "length-of-a-fraction": request("Content-Length: 1.5", line="POST /predict HTTP/1.1"),
    "no-length": request("Content-Length:", line="POST /predict HTTP/1.1"),
    "length-of-many-digits": request("Content-Length: " + "9" * 40, line="POST /predict HTTP/1.1"),
    "length-in-other-digits": request("Content-Length: \xb2", line="POST /predict HTTP/1.1"),
    "two-lengths": request("Content-Length: 1", "Content-Length: 2", line="POST /predict HTTP/1.1"),
    "lengths-in-a-list": request("Content-Length: 1, 2", line="POST /predict HTTP/1.1"),
    "gzip": request("Transfer-Encoding: gzip", line="POST /predict HTTP/1.1"),
    "gzip-chunked": request("Transfer-Encoding: gzip, chunked", line="POST /predict HTTP/1.1"),
    "identity": request("Transfer-Encoding: identity", line="POST /predict HTTP/1.1"),
    "chunked-twice": request(
        "Transfer-Encoding: chunked", "Transfer-Encoding: chunked", line="POST /predict HTTP/1.1"
    ),
}  # fmt: skip
CHUNKED = ("Content-Type: application/json", "Transfer-Encoding: chunked")
for name, chunks in {
    "size-in-letters": b"zz\r\n{}\r\n0\r\n\r\n",
    "negative-size": b"-1\r\n{}\r\n0\r\n\r\n",
    "size-of-many-digits": b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n",
    "size-too-small": b"1\r\n{}\r\n0\r\n\r\n",
    "no-size": b"\r\n{}\r\n0\r\n\r\n",
    "nulls": b"\0\0\0\0\r\n\r\n",
    "no-end-of-a-chunk": b"2\r\n{}0\r\n\r\n",
    "bad-trailer": b"2\r\n{}\r\n0\r\nX\r\n\r\n",
}.items():
    RAW[f"chunk-{name}"] = request(*CHUNKED, line="POST /predict HTTP/1.1", body=chunks)


@pytest.mark.parametrize("name", RAW)
def test_bytes_that_are_no_request(hostile, name):
    others = {"no-host-1.0": 403, "http2": 403, "large-header": 200, "many-headers": 200}
    assert status_of(hostile, RAW[name]) in (400, others.get(name))


BOTH = {
    "length-first": ("Content-Length: 4", "Transfer-Encoding: chunked"),
    "length-last": ("Transfer-Encoding: chunked", "Content-Length: 4"),
    "length-0": ("Transfer-Encoding: chunked", "Content-Length: 0"),
    "other-letters": ("content-LENGTH: 4", "TRANSFER-encoding: CHUNKED"),
}


@pytest.mark.parametrize("path", ["/predict", "/v1/embeddings", "/v1/models", "/nothing", "/"])
@pytest.mark.parametrize("name", BOTH)
def test_two_lengths_of_a_body_close_the_connection(hostile, name, path):
    smuggled = request(line="GET /health HTTP/1.1")
    data = request(
        "Content-Type: application/json", *BOTH[name], line=f"POST {path} HTTP/1.1",
        body=b"0\r\n\r\n" + smuggled,
    )  # fmt: skip
    with connected(hostile) as raw:
        raw.sendall(data)
        answer, text = read(raw)
        assert answer.status == 400
        assert "Transfer-Encoding" in text
        assert answer.headers["connection"] == "close"
        assert raw.recv(1) == b""


START = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PARTS = {
    "nothing": b"",
    "a-letter": b"G",
    "a-method": b"GET",
    "a-target": b"GET /v1/mod",
    "a-version": b"GET / HTTP/1.",
    "a-line": b"GET / HTTP/1.1\r\n",
    "a-name": b"GET / HTTP/1.1\r\nHos",
    "a-value": b"GET / HTTP/1.1\r\nHost: local",
    "a-header": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    "no-last-newline": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r",
    "foreign": b"POST / HTTP/1.1\r\nHost: evil.com\r\nContent-Length: 9\r\n",
    "many-headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 999,
    "no-body": START + b"Content-Length: 10\r\n\r\n",
    "a-byte-of-a-body": START + b"Content-Length: 10\r\n\r\n{",
    "a-body-less-a-byte": START + b"Content-Length: 10\r\n\r\n{\"input\":",
    "no-chunk": START + b"Transfer-Encoding: chunked\r\n\r\n",
    "half-a-size": START + b"Transfer-Encoding: chunked\r\n\r\n1",
    "half-a-chunk": START + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "no-last-chunk": START + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "half-an-end": START + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
    "half-a-trailer": START + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: a",
}  # fmt: skip


@pytest.fixture(scope="module")
def halves(hostile):
    """A connection for each part of a request, all open at once."""
    opened = {}
    for name, data in PARTS.items():
        context = connected(hostile)
        raw = context.__enter__()
        raw.sendall(data)
        opened[name] = (context, raw)
    yield {name: raw for name, (_, raw) in opened.items()}
    for context, _ in opened.values():
        context.__exit__(None, None, None)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_request_is_given_up(halves, name):
    raw = halves[name]
    if name == "nothing":
        assert raw.recv(1) == b""  # nothing was asked
        return
    answer, _ = read(raw)
    assert answer.status == 408
    assert answer.headers["connection"] == "close"
    assert raw.recv(1) == b""


def test_a_header_that_comes_slowly_is_given_up(hostile):
    with connected(hostile) as raw:
        raw.settimeout(0.1)
        for _ in range(300):
            try:
                raw.sendall(b"X")
                assert b" 408 " in raw.recv(4096).partition(b"\r\n")[0]
                return
            except TimeoutError:
                continue
    pytest.fail("it was never given up")


def test_a_body_after_the_answer_is_given_up(hostile):
    with connected(hostile) as raw:
        raw.sendall(request("Content-Length: 99"))
        assert read(raw)[0].status == 200
        raw.sendall(b"X")
        raw.settimeout(20)
        assert raw.recv(1) == b""


@pytest.mark.parametrize("name", [*(name for name in RAW if "chunk-" in name), "two-types"])
def test_bad_bytes_after_an_answer_are_no_second_answer(hostile, name):
    data = RAW[name].replace(b"POST /predict", b"GET /health")
    with connected(hostile) as raw:
        raw.sendall(data)
        raw.settimeout(20)
        read(raw)
        raw.sendall(b"\0 no request \0\r\n\r\n")
        try:
            rest = raw.recv(10_000)
        except ConnectionResetError:
            rest = b""
        assert rest == b"" or b" 400 " in rest.partition(b"\r\n")[0]


def test_clients_that_go_at_any_byte_leave_nothing_behind(hostile):
    data = post("/predict", {**GENERATE, "max_new_tokens": 60_000, "stream": True})
    for size in (*range(0, len(data), 9), len(data)):
        with connected(hostile) as raw:
            raw.sendall(data[:size])
    wait_for(lambda: hostile.guard.unanswered == 0)


HEADERS = {
    "content-type": [
        "", "application/json5", "text/json", "application", "/", ";",
        "application/json, text/plain", "APPLICATION/XML", "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\xff", "multipart/form-data; boundary=" + "x" * 5000,
        "multipart/form-data; charset=x; boundary=x", "application/x-www-form-urlencoded", "\x7f",
    ],
    "accept": ["", "*/*;q=x", "\xff", "a" * 5000],
    "accept-encoding": ["gzip;q=0", "bomb", "\xff"],
    "content-encoding": ["gzip", "br", "x"],
    "expect": ["100-continue", "200-ok", "\xff"],
    "connection": ["close, keep-alive", "upgrade", "\xff", "content-length"],
    "upgrade": ["websocket", "h2c", "\xff"],
    "cookie": ["=", ";" * 2000, "a=\xff"],
    "range": ["bytes=0-", "bytes=9-1", "x"],
    "x-forwarded-for": ["evil.com", "\xff", "127.0.0.1"],
    "x-forwarded-host": ["evil.com", "["],
    "x-forwarded-proto": ["https", "javascript"],
    "x-http-method-override": ["DELETE"],
    "forwarded": ["for=\"[\"", "host=evil.com"],
    "if-none-match": ["*", "\""],
    "te": ["trailers", "x"],
    "access-control-request-method": ["POST", "\xff"],
    "sec-fetch-site": ["cross-site"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, each in HEADERS.items() for v in each])
def test_a_header_of_any_value(hostile, name, value):
    header = f"{name}: {value}"
    if name == "content-type":
        sent = json.dumps(GENERATE).encode()
        data = request(
            header, f"Content-Length: {len(sent)}", line="POST /predict HTTP/1.1", body=sent
        )
        assert status_of(hostile, data) in (400, 415)
        return
    more = ("Connection: upgrade",) if name == "upgrade" else ()
    assert status_of(hostile, request(header, *more)) in (200, 400)
    assert status_of(hostile, post("/predict", GENERATE, header, *more)) in (200, 400)


NUMBERS = [
    "1e-320", "5e-324", "1e-300", "1e-45", "1e-10", "9.9e-7", "-0.1", "-1e-320", "100.1", "1e308",
    "1e309", "-1e309", "NaN", "Infinity", "-Infinity", "1e99999", '"0.5"', "true", "[]", "{}",
    "9" * 400, "0x1", "1_000", ".5", "1.", "+1", "01", "1e", "-",
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_that_no_temperature_has(hostile, number):
    for path, text in (("/predict", "input"), ("/v1/completions", "prompt")):
        body = f'{{"model": "clm", "{text}": "The ", "temperature": {number}}}'
        assert status_of(hostile, post(path, body.encode())) == 400


WHOLE = {
    ("/predict", "clm", "input"): ["max_new_tokens", "seed", "top_p", "stream", "stop", "top"],
    ("/v1/completions", "clm", "prompt"): ["max_tokens", "n", "best_of", "logprobs"],
    ("/v1/embeddings", "embed", "input"): ["dimensions"],
    ("/predict", "embed", "input"): ["size"],
    ("/predict", "classify", "input"): ["top"],
    ("/heads", "embed", "input"): ["layer", "head", "length"],
}
VALUES = ["-1", "1e-320", "1.5", "9223372036854775808", "-9223372036854775809", "1e309", "9" * 400]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("path", "model", "text", "key"), [(*at, key) for at, keys in WHOLE.items() for key in keys]
)
def test_a_number_that_no_key_has(hostile, path, model, text, key, value):
    body = f'{{"model": "{model}", "{text}": "The ", "{key}": {value}}}'
    expected = (200, 400) if (key, value) == ("top_p", "1e-320") else (400,)
    assert status_of(hostile, post(path, body.encode())) in expected


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 100.0, 0])
def test_the_ends_of_what_a_temperature_may_be(hostile, temperature):
    body = {**GENERATE, "temperature": temperature}
    assert status_of(hostile, post("/predict", body)) == 200
