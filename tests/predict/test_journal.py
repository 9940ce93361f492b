"""The lock and the journal of a job: what belongs to the user stays, and what is said is true."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from linformer_kit.errors import UserError
from linformer_kit.predict.journal import locked


def hold(out):
    """Take the lock of `out` and give it back."""
    with locked(out):
        pass


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_with_content_in_the_place_of_the_lock_is_left_alone(tmp_path, kind):
    out, lock = tmp_path / "out.csv", tmp_path / ".out.csv.lock"
    mine = lock if kind == "file" else tmp_path / "mine"
    mine.write_text("years of work")
    if kind == "link":
        lock.symlink_to(mine)
    with pytest.raises(UserError, match=r"must be free or an empty file: got .* left alone\. Move"):
        hold(out)
    assert mine.read_text() == "years of work"
    assert os.path.lexists(lock)


def test_a_file_that_takes_the_place_of_the_lock_meanwhile_is_not_removed(tmp_path):
    lock = tmp_path / ".out.csv.lock"
    with locked(tmp_path / "out.csv"):
        lock.unlink()
        lock.write_text("years of work")
    assert lock.read_text() == "years of work"


def test_the_lock_of_a_killed_job_is_taken_and_removed(tmp_path):
    lock = tmp_path / ".out.csv.lock"
    lock.touch()
    with locked(tmp_path / "out.csv"):
        assert lock.exists()
        with pytest.raises(UserError, match=r"another process writes .*out\.csv"):
            hold(tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder without files of users")
def test_a_folder_that_takes_no_files_is_not_called_another_process():
    with pytest.raises(UserError, match=r"cannot write /proc/a\.jsonl: ") as caught:
        hold(Path("/proc/a.jsonl"))
    assert "another process" not in str(caught.value)
