"""A disk that is really full: one line, the last good checkpoint is intact, and it resumes."""

from __future__ import annotations

import subprocess

import pytest

from linformer_kit.measure.records import read_records

from . import commands, tiny
from .commands import slow


@pytest.fixture
def disk(tmp_path):
    """A file system whose size can be set."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip("needs to mount a file system")

    def resize(size):
        subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)
        return place

    yield resize
    subprocess.run(["umount", "--lazy", place], check=True)


# The room is used up while the folder is made, by TensorBoard, by the first checkpoint, and later.
@pytest.mark.parametrize("size", [slow("8k"), "16k", slow("32k"), "160k", slow("260k")])
def test_a_full_disk_is_one_line_and_with_room_the_run_resumes(tmp_path, disk, results, size):
    path = tiny.write(tmp_path)
    run = disk(size) / "run"
    words = ["train", path, f"run={run}"]
    code, _, err = commands.run(tmp_path / "log", *words)
    assert code == 2
    assert err.startswith("linformer: cannot ")
    assert "the same command again" in err
    assert err.count("\n") == 1
    saved = sorted((run / "checkpoints").glob("checkpoint-*"))
    disk("20m")
    code, out, err = commands.run(tmp_path / "log", *words)
    assert (code, err) == (0, "")
    assert commands.results(run) == results
    assert ('"event": "resumed"' in out) == bool(saved)
    assert not list(run.rglob(".saving*"))


def test_a_full_disk_keeps_the_records_of_a_benchmark(tmp_path, disk):
    path = disk("4k") / "records.jsonl"
    lengths = ",".join(str(length) for length in range(32, 112, 8))
    words = ["bench", "grid", "--k", "8", "--dim", "16", "--heads", "2", "--tokens", "32"]
    words += ["--no-memory", "--rounds", "1", "--threads", "1", "--lengths", lengths, "--out", path]
    code, _, err = commands.run(tmp_path / "log", *words)
    assert code == 2
    assert err.endswith("No space left on device. What was written before is there.\n")
    before = read_records(path).records
    assert 0 < len(before) < 30
    finished = len(before) // 3  # a cell has three records
    disk("20m")
    code, _, err = commands.run(tmp_path / "log", *words)
    assert code == 0
    assert f"{finished} of 10 cells: not measured again" in err
    after = read_records(path).records
    assert after[: len(before)] == before
    assert len(after) == len(before) + (10 - finished) * 3
