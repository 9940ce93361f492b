"""Files: found in every way, each once, and only regular ones that may be read."""

from __future__ import annotations

import pytest

from linformer_kit.data import files
from linformer_kit.data.files import Limits
from linformer_kit.errors import UserError

from . import hostile
from .limits import at_most, ordinary_user


@pytest.mark.parametrize("source", ["", " ", "\t\n"])
def test_an_empty_name_is_not_the_current_folder(source):
    with pytest.raises(UserError, match="must not be empty"):
        files.find(source)


@pytest.mark.parametrize(
    "source", ["~nobody-of-that-name/a.txt", "a" * 5000, "**a/*.txt", "nul\0byte.txt"]
)
def test_a_name_that_no_file_can_have_is_told(source):
    with pytest.raises(UserError):
        files.find(source)


def test_links_to_folders_are_followed_once(tmp_path):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "a.txt").write_text("a")
    (tmp_path / "real" / "deep" / "b.txt").write_text("b")
    (tmp_path / "real" / "deep" / "back").symlink_to(tmp_path / "real")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.txt").write_text("c")
    (tmp_path / "real" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "real" / "zwei").symlink_to(tmp_path / "elsewhere")
    found = files.find(str(tmp_path / "real"))
    assert [path.read_text() for path in found] == ["a", "b", "c"]


def test_a_glob_matches_files_and_not_folders(tmp_path):
    (tmp_path / "a.txt").mkdir()
    (tmp_path / "b.txt").write_text("b")
    assert files.find(str(tmp_path / "*.txt")) == [tmp_path / "b.txt"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path):
    (tmp_path / "a[1].txt").write_text("a")
    (tmp_path / "a1.txt").write_text("other")
    assert files.find(str(tmp_path / "a[1].txt")) == [tmp_path / "a[1].txt"]


def test_a_fifo_in_the_place_of_a_file_does_not_block(tmp_path, monkeypatch):
    path = hostile.write_fifo(tmp_path)
    monkeypatch.setattr(files, "size_of", lambda path: 0)  # it was a file when it was found
    with at_most(5), pytest.raises(UserError, match="must be a regular file: got a FIFO"):
        files.open_regular(path)


def test_a_file_that_is_gone_is_told(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a\n")
    found = files.find(str(path))
    path.unlink()
    with pytest.raises(UserError, match=r"cannot read .*a.txt: No such file"):
        list(files.lines(found[0], Limits()))


def read(source):
    return [line for path in files.find(source) for line in files.lines(path, Limits())]


def test_what_may_not_be_read_is_told(open_folder):
    (open_folder / "a.txt").write_text("a")
    (open_folder / "closed").mkdir()
    (open_folder / "closed" / "b.txt").write_text("b")
    (open_folder / "a.txt").chmod(0)
    (open_folder / "closed").chmod(0)
    try:
        with ordinary_user():
            for source in ("a.txt", "closed", "closed/b.txt", "."):
                with pytest.raises(UserError, match=r"cannot read .*Permission denied"):
                    read(str(open_folder / source))
    finally:
        (open_folder / "closed").chmod(0o755)


@pytest.mark.parametrize("content", [b"a\nb\n", b"\xef\xbb\xbfa\nb\n"])
def test_a_byte_order_mark_is_no_text(tmp_path, content):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    assert list(files.lines(path, Limits())) == ["a\n", "b\n"]
    assert files.whole(path, Limits()) == "a\nb\n"


def test_all_bytes_are_told(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(hostile.TEXT * 3)
    told = []
    lines = list(files.lines(path, Limits(tell=told.append)))
    assert sum(told) == path.stat().st_size == sum(len(line) for line in lines)
