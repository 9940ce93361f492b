"""Texts for a model to read: plain text, or one line that says what is wrong."""

from __future__ import annotations

import os

import pytest

from linformer_kit.errors import UserError
from linformer_kit.evidence.analysis import texts
from linformer_kit.evidence.analysis.texts import check_text, lines_of


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no text"),
        (b" \n\t\n", "holds no text"),
        (b"\x89PNG\r\n\x00\x00", "is a binary file"),
    ],
)
def test_a_file_without_text_is_refused_at_once(tmp_path, content, message):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError, match=rf"--text .*{message}.*plain text in UTF-8"):
        check_text(str(tmp_path / "a"))


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_is_not_a_file_is_refused(tmp_path, kind):
    path = tmp_path / "a"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(UserError, match="is no file"):
        check_text(str(path))


def test_text_that_is_not_utf_8_is_told_with_its_line(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"one\ntwo\n" * 4000 + "café\n".encode("latin-1"))
    check_text(str(path))
    with pytest.raises(UserError, match="is not UTF-8 after line"):
        list(lines_of(str(path)))


def test_a_line_without_an_end_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "LONGEST_LINE", 10)
    path = tmp_path / "long.txt"
    path.write_text("x" * 25 + "\nshort\n")
    assert list(lines_of(str(path))) == ["x" * 10, "x" * 10, "xxxxx\n", "short\n"]


def test_the_built_in_corpus_is_a_text():
    check_text("python-docs")
    assert len(next(lines_of("python-docs"))) > 10
