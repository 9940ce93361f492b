"""A comparison writes only where it may, and replaces only what it wrote."""

from __future__ import annotations

import os

import pytest

from linformer_kit.compare.folder import ComparisonFolder
from linformer_kit.errors import UserError

NAMES = ["README.md", "records.jsonl", "curves.png"]


def files(text):
    return {name: f"{name} {text}".encode() for name in NAMES}


def snapshot(folder):
    """Everything below a folder: links as links, files with their content."""
    return {
        path.relative_to(folder): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_what_was_written_is_replaced(tmp_path):
    folder = ComparisonFolder(tmp_path / "new" / "c")
    for text in ("first", "second"):
        folder.check(NAMES)
        folder.open()
        folder.write(files(text))
        assert {name: (folder.path / name).read_bytes() for name in NAMES} == files(text)
    assert {path.name for path in folder.path.iterdir()} == {*NAMES, "comparison.json"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["edited", "link", "folder", "pipe"])
def test_a_file_that_is_not_the_comparisons_is_never_replaced(tmp_path, name, how):
    folder = ComparisonFolder(tmp_path / "c")
    folder.open()
    folder.write(files("first"))
    path = folder.path / name
    outside = tmp_path / "outside.txt"
    outside.write_text("mine")
    if how == "edited":
        path.write_text("my notes")
    else:
        path.unlink()
        if how == "link":
            path.symlink_to(outside)
        elif how == "folder":
            path.mkdir()
        else:
            os.mkfifo(path)
    others = [other for other in NAMES if other != name]
    with pytest.raises(
        UserError, match=rf"{name} (is not a regular file|exists and was not written).*left alone"
    ):
        folder.write(files("second"))
    assert [(folder.path / other).read_bytes() for other in others] == [
        files("first")[other] for other in others
    ]
    assert outside.read_text() == "mine"
    if how == "edited":
        assert path.read_text() == "my notes"


def test_foreign_files_stay_beside_a_comparison(tmp_path):
    folder = ComparisonFolder(tmp_path)
    folder.open()
    (tmp_path / "notes.txt").write_text("mine")
    folder.check(NAMES)
    folder.write(files("first"))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_kill_between_two_files_leaves_a_folder_that_goes_on(tmp_path, monkeypatch):
    folder = ComparisonFolder(tmp_path / "c")
    folder.open()
    folder.write(files("first"))
    real, count = os.fsync, [0]

    def killed(handle):
        count[0] += 1
        if count[0] == 3:  # the marker, README.md, and now records.jsonl
            raise KeyboardInterrupt
        real(handle)

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.write(files("second"))
    monkeypatch.undo()
    found = [(folder.path / name).read_bytes() for name in NAMES]
    assert found == [
        files("second")["README.md"],
        *(files("first")[name] for name in ("records.jsonl", "curves.png")),
    ]
    folder.check(NAMES)
    folder.write(files("third"))
    assert (folder.path / "README.md").read_bytes() == files("third")["README.md"]
