"""Options of `linformer spectrum` and `linformer heads`: a value that cannot be is one line."""

from __future__ import annotations

import pytest

from linformer_kit.cli import main

from .test_heads import save_linformer
from .test_spectrum import text

__all__ = ["text"]  # a fixture


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_linformer(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("spectrum", ["--length", "0"]),
        ("spectrum", ["--length", "1"]),
        ("spectrum", ["--length", "2"]),
        ("spectrum", ["--length", "33"]),
        ("spectrum", ["--length", "1000000000000"]),
        ("spectrum", ["--length", "-5"]),
        ("spectrum", ["--length", "x"]),
        ("spectrum", ["--pieces", "0"]),
        ("spectrum", ["--pieces", "-1"]),
        ("spectrum", ["--rank", "0"]),
        ("spectrum", ["--rank", "33", "--length", "32"]),
        ("spectrum", ["--threads", "0"]),
        ("spectrum", ["--seed", "-1"]),
        ("heads", ["--length", "0"]),
        ("heads", ["--length", "2"]),
        ("heads", ["--length", "33"]),
        ("heads", ["--layer", "0"]),
        ("heads", ["--layer", "3"]),
        ("heads", ["--head", "3"]),
        ("heads", ["--head", "-1"]),
        ("heads", ["--layer", "1e3"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_value_that_cannot_be_is_one_line(capsys, tmp_path, model, text, command, options):
    out = tmp_path / "out.jsonl"
    with pytest.raises(SystemExit) as ended:
        main([command, str(model), "--text", str(text), "--out", str(out), *options])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.err.startswith("linformer: ")
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert not out.exists() or out.read_text() == ""


@pytest.mark.parametrize("content", [b"", b"\0\1\2", b"caf\xe9 " * 2000, b"w1"])
@pytest.mark.parametrize("command", ["spectrum", "heads"])
def test_a_text_that_cannot_be_read_is_one_line(capsys, tmp_path, model, command, content):
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main([command, str(model), "--text", str(tmp_path / "text"), "--out", str(tmp_path / "o")])
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert len(said.err.strip().splitlines()) == 1
