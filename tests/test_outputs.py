"""An output replaces only what this package wrote."""

from __future__ import annotations

import os

import pytest

from linformer_kit import outputs
from linformer_kit.errors import UserError
from linformer_kit.outputs import check_replaceable, holds, write_atomic

MARKER = "made by linformer-kit"


def test_a_new_path_an_empty_file_and_our_own_file_pass(tmp_path):
    (tmp_path / "empty").write_text("")
    (tmp_path / "ours").write_text(f"<html>{MARKER}</html>")
    (tmp_path / "older").write_text("<html>another marker</html>")
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    for name in ("new", "none/new", "empty", "ours", "older", "link"):
        check_replaceable(tmp_path / name, MARKER, "another marker")


def test_anything_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("thesis.txt", "was not written by this command: it is left alone"),
        ("folder", "is not a regular file"),
        ("dangling", "is a link to a file that does not exist"),
        ("pipe", "is not a regular file"),
        ("x" * 300, "cannot write"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            check_replaceable(tmp_path / name, MARKER)
        assert "Name another file with --out." in str(caught.value)
    assert (tmp_path / "thesis.txt").read_text() == "three years of work"


@pytest.mark.parametrize("before", [0, 1, 5, 6, 7, 8, 9, 16, 100])
def test_a_marker_is_found_wherever_it_stands(tmp_path, monkeypatch, before):
    monkeypatch.setattr(outputs, "CHUNK", 8)
    path = tmp_path / "file"
    path.write_bytes(b"x" * before + MARKER.encode() + b"y" * 3)
    assert holds(path, MARKER)
    assert not holds(path, MARKER + "z")


def test_an_interrupted_write_keeps_the_old_content_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "page"
    write_atomic(path, b"old")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
