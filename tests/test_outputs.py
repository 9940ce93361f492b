"""An output replaces only what this package wrote."""

from __future__ import annotations

import errno
import os

import pytest

from linformer_kit import outputs
from linformer_kit.errors import UserError
from linformer_kit.outputs import check_replaceable, holds, staged_name, write_atomic

MARKER = "made by linformer-kit"


def test_a_new_path_an_empty_file_and_our_own_file_pass(tmp_path):
    (tmp_path / "empty").write_text("")
    (tmp_path / "ours").write_text(f"<html>{MARKER}</html>")
    (tmp_path / "older").write_text("<html>another marker</html>")
    for name in ("new", "none/new", "empty", "ours", "older"):
        check_replaceable(tmp_path / name, lambda path: holds(path, MARKER, "another marker"))


def test_anything_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("three years of work")
    (tmp_path / "folder").mkdir()
    (tmp_path / "ours").write_text(MARKER)
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("thesis.txt", "was not written by this command: it is left alone"),
        ("folder", "is not a regular file"),
        ("link", "is not a regular file"),
        ("dangling", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("x" * 300, "cannot write"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            check_replaceable(tmp_path / name, lambda path: holds(path, MARKER))
        assert "Name another file with --out." in str(caught.value)
    assert (tmp_path / "thesis.txt").read_text() == "three years of work"


@pytest.mark.parametrize("before", [0, 1, 5, 6, 7, 8, 9, 16, 100])
def test_a_marker_is_found_wherever_it_stands(tmp_path, monkeypatch, before):
    monkeypatch.setattr(outputs, "CHUNK", 8)
    path = tmp_path / "file"
    path.write_bytes(b"x" * before + MARKER.encode() + b"y" * 3)
    assert holds(path, MARKER)
    assert not holds(path, MARKER + "z")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SystemExit()])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_file_is_the_old_one_or_the_new_one(tmp_path, monkeypatch, error, step):
    path = tmp_path / "file"
    write_atomic(path, "old")
    left = []

    def fail(*_):
        left.extend(tmp_path.glob(".saving*"))
        left.append(staged_name(left[0]))
        raise error

    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (type(path), "replace")}[step], fail)
    expected = UserError if isinstance(error, OSError) else SystemExit
    with pytest.raises(expected):
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert left[1] == "file"  # what a kill at this point leaves is known by its name
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomic(path, b"new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
