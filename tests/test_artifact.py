"""Artifacts: what is the user's stays, what is ours is whole or absent, one process writes."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from linformer_kit import artifact
from linformer_kit.artifact import (
    HOLDER,
    LOCK,
    MANIFEST,
    check_replaceable,
    clean_staging,
    damage,
    holds,
    json_bytes,
    publish_folder,
    remove_written,
    staged_name,
    write_atomic,
    write_manifest,
)
from linformer_kit.compare.folder import ComparisonFolder
from linformer_kit.convert.conversion_folder import ConversionFolder
from linformer_kit.data.store import locked as data_locked
from linformer_kit.errors import UserError
from linformer_kit.predict.journal import locked as answers_locked
from linformer_kit.runs.folder import RunFolder
from linformer_kit.search.folder import locked as index_locked
from linformer_kit.search.folder import write as write_index

MARKER = "made by linformer-kit"


def snapshot(folder):
    """Everything below a folder: links as links, files with their content."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


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
    monkeypatch.setattr(artifact, "CHUNK", 8)
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


# One contract for every folder that a command makes. `start` makes it, as far as its marker.


def start_run(folder):
    RunFolder(folder).create()
    write_atomic(folder / "run.json", json_bytes({"kind": RunFolder.kind, "data": {}}))


def start_conversion(folder):
    ConversionFolder(folder).create()
    ConversionFolder(folder).open({}, {})


def start_index(folder):
    with index_locked(folder):
        write_index(folder, {}, {"vectors": np.zeros((1, 2)), "places": np.zeros((1, 3))}, None)


FOLDERS = {
    "run": (lambda folder: RunFolder(folder).check_ours(), start_run, "run.json"),
    "comparison": (
        lambda folder: ComparisonFolder(folder).check([]),
        lambda folder: ComparisonFolder(folder).open(),
        "comparison.json",
    ),
    "conversion": (
        lambda folder: ConversionFolder(folder).check_for({}),
        start_conversion,
        "distillation/run.json",
    ),
    "index": (lambda folder: index_locked(folder).__enter__(), start_index, "index.json"),
}
every_folder = pytest.mark.parametrize("name", FOLDERS)


@pytest.fixture
def folder(name, tmp_path):
    """How a kind of folder is checked and started, and the name of its marker."""
    return FOLDERS[name]


@every_folder
@pytest.mark.parametrize("what", ["new", "empty", "started", "started and filled"])
def test_a_folder_that_is_new_or_ours_passes(tmp_path, folder, what):
    check, start, _ = folder
    path = tmp_path / "made"
    if what == "empty":
        path.mkdir()
    elif what != "new":
        start(path)
    if what == "started and filled":
        (path / "notes.txt").write_text("mine")
    before = snapshot(path)
    check(path)
    assert {k: v for k, v in snapshot(path).items() if not k.startswith(".lock")} == {
        k: v for k, v in before.items() if not k.startswith(".lock")
    }


@every_folder
def test_what_a_start_leaves_that_was_killed_passes(tmp_path, folder):
    check, _, marker = folder
    path = (tmp_path / "made" / marker).parent
    path.mkdir(parents=True)
    for name in (f".saving-71-{(path / marker).name}", LOCK, HOLDER):
        (path / name).touch()
    check(tmp_path / "made")


@every_folder
@pytest.mark.parametrize(
    "mine",
    [
        *("thesis.txt", ".git", "README.md", "config.json", "src/a.py", "records.jsonl"),
        *(".saving-71-notes", ".saving-run.json", "run.json", "comparison.json", "vectors-1.npy"),
    ],
)
def test_a_folder_of_something_else_is_refused_and_stays(tmp_path, folder, mine):
    check, *_ = folder
    file = tmp_path / "project" / mine
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    before = snapshot(tmp_path)
    message = rf"exists and is not .*: it is left alone, for it holds {mine[:3]}.*Name another fol"
    with pytest.raises(UserError, match=message):
        check(tmp_path / "project")
    assert snapshot(tmp_path) == before


@every_folder
@pytest.mark.parametrize("kind", ["file", "link to nothing", "pipe"])
def test_what_is_no_folder_is_refused_and_stays(tmp_path, folder, kind):
    check, *_ = folder
    path = tmp_path / "made"
    if kind == "file":
        path.write_text("mine")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    with pytest.raises(UserError, match=r"made is not a folder: it is left alone. Name another"):
        check(path)
    assert os.path.lexists(path)


@pytest.mark.parametrize("name", ["run", "comparison", "conversion"])
@pytest.mark.parametrize("content", ["{}", "[]", '{"kind": 3}', "[" * 100_000, "\0\1", ""])
def test_a_damaged_marker_is_no_marker(tmp_path, folder, content):
    check, _, marker = folder
    (tmp_path / marker).parent.mkdir(exist_ok=True)
    (tmp_path / marker).write_text(content)
    with pytest.raises(UserError, match=r"exists and is not .* folder"):
        check(tmp_path)


# One contract for every lock: where its file is, and how it is taken.


def wait():
    raise UserError("is in use by another process")  # instead of waiting for it


LOCKS = {
    "run": ("a/.lock", lambda home: RunFolder(home / "a").lock()),
    "conversion": ("a/distillation/.lock", lambda home: ConversionFolder(home / "a").lock()),
    "index": ("a/.lock", lambda home: index_locked(home / "a")),
    "prepared data": ("a.lock", lambda home: data_locked(home / "a", wait)),
    "answers": (".a.lock", lambda home: answers_locked(home / "a")),
}
every_lock = pytest.mark.parametrize("name", LOCKS)


@pytest.fixture
def lock(name, tmp_path):
    """The file of a lock, and how the lock is taken."""
    file, take = LOCKS[name]
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    return tmp_path / file, lambda: take(tmp_path)


@every_lock
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_file_with_content_in_the_place_of_a_lock_is_left_alone(tmp_path, lock, kind):
    file, take = lock
    mine = file if kind == "file" else tmp_path / "mine"
    if kind == "folder":
        file.mkdir()
    else:
        mine.write_text("years of work")
    if kind == "link":
        file.symlink_to(mine)
    with pytest.raises(UserError, match=r"must be free or an empty file: got .* left alone\. Move"):
        take().__enter__()
    assert os.path.lexists(file)
    assert kind == "folder" or mine.read_text() == "years of work"


@every_lock
def test_a_lock_in_use_is_refused_and_one_of_a_killed_process_is_taken(tmp_path, lock, name):
    file, take = lock
    file.touch()
    with take():
        assert file.exists()
        who = f"process {os.getpid()} on" if file.name == LOCK else "another process"
        with pytest.raises(UserError, match=f"is in use by {who}"):
            take().__enter__()
    with take():
        pass
    assert file.exists() == (name != "answers")  # beside the user's files nothing is left
    assert not file.with_name(HOLDER).exists()


def test_a_file_that_takes_the_place_of_the_lock_meanwhile_is_not_removed(tmp_path):
    lock = tmp_path / ".out.csv.lock"
    with answers_locked(tmp_path / "out.csv"):
        lock.unlink()
        lock.write_text("years of work")
    assert lock.read_text() == "years of work"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a folder without files of users")
@pytest.mark.parametrize("take", [answers_locked, lambda path: data_locked(path, wait)])
def test_a_folder_that_takes_no_files_is_not_called_another_process(take):
    with pytest.raises(UserError, match=r"cannot (write|keep .*) /proc.*: ") as caught:
        take(Path("/proc/a.jsonl")).__enter__()
    assert "another process" not in str(caught.value)


HOLD = """
import sys, time
from pathlib import Path
from linformer_kit.runs.folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_in_use_is_refused_by_name_and_a_killed_holder_is_stale(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=rf"{tmp_path} is in use by process {process.pid} on "):
        RunFolder(tmp_path).lock()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (tmp_path / ".lock-holder").is_file()  # left behind, and stale
    with RunFolder(tmp_path).lock():
        assert str(os.getpid()) in (tmp_path / ".lock-holder").read_text()
    assert not (tmp_path / ".lock-holder").exists()


def test_a_holder_that_has_not_written_its_name_yet_is_waited_for(tmp_path):
    held = FileLock(tmp_path / LOCK)
    held.acquire()
    later = threading.Timer(0.2, (tmp_path / HOLDER).write_text, ["process 7 on elsewhere\n"])
    later.start()
    try:
        named = pytest.raises(UserError, match="is in use by process 7 on elsewhere")
        with named, RunFolder(tmp_path).lock():
            pass
    finally:
        later.join()
        held.release()


# The manifest.


@pytest.fixture
def written(tmp_path):
    folder = tmp_path / "best"
    (folder / "deeper").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "deeper/config.json").write_text("{}")
    write_manifest(folder)
    return folder


def test_an_untouched_folder_is_intact(written):
    assert damage(written) is None


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "model.safetensors").write_bytes(b"weight"), "6 bytes instead of 7"),
        (lambda f: (f / "model.safetensors").write_bytes(b"WEIGHTS"), "content of model.safe"),
        (lambda f: (f / MANIFEST).unlink(), "is missing"),
        (lambda f: (f / MANIFEST).write_text("[]"), "is damaged"),
        (lambda f: (f / MANIFEST).write_bytes(b"\xff\x00"), "is damaged"),
        (lambda f: (f / MANIFEST).write_text('{"files": ' * 100_000), "is damaged"),
        (lambda f: (f / MANIFEST).write_text('{"files": {"../../a": {}}}'), "not a file below"),
        (lambda f: (f / MANIFEST).write_text('{"files": {"/etc/passwd": {}}}'), "not a file below"),
    ],
)
def test_damage_is_named(written, break_it, message):
    break_it(written)
    assert message in damage(written)


def test_only_listed_files_are_removed(written):
    notes = written / "deeper/notes.txt"
    notes.write_text("mine")
    assert remove_written(written) == [notes]
    assert [p for p in written.rglob("*") if p.is_file()] == [notes]


def test_a_folder_of_listed_files_alone_is_removed_whole(written):
    assert remove_written(written) == []
    assert not written.exists()


def test_a_manifest_that_names_files_outside_removes_nothing(tmp_path, written):
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    (written / MANIFEST).write_text(json.dumps({"files": {"../thesis.txt": {"bytes": 13}}}))
    with pytest.raises(UserError, match="damaged"):
        remove_written(written)
    assert thesis.read_text() == "years of work"


def test_links_are_never_followed(tmp_path, written):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("mine")
    (written / "deeper/config.json").unlink()
    (written / "deeper").rmdir()
    (written / "deeper").symlink_to(outside)
    with pytest.raises(UserError, match="is a link"):
        remove_written(written)
    assert (outside / "config.json").read_text() == "mine"


def test_a_replaced_folder_keeps_the_users_files(tmp_path, written):
    (written / "notes.txt").write_text("mine")
    staging = tmp_path / ".saving-best"
    staging.mkdir()
    (staging / "model.safetensors").write_bytes(b"new")
    publish_folder(staging, written)
    assert (written / "notes.txt").read_text() == "mine"
    assert (written / "model.safetensors").read_bytes() == b"new"
    assert damage(written) is None
    assert {p.name for p in tmp_path.iterdir()} == {"best"}


def test_a_users_file_with_the_name_of_a_runs_is_kept_beside_it(tmp_path):
    final, staging = tmp_path / "best", tmp_path / ".saving-best"
    for folder, text in ((final, b"mine"), (staging, b"new")):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(text)
    publish_folder(staging, final)
    assert (final / "model.safetensors").read_bytes() == b"new"
    assert (final / "model.safetensors.kept").read_bytes() == b"mine"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_or_a_link_in_the_place_of_a_folder_is_not_replaced(tmp_path, kind):
    final, staging = tmp_path / "best", tmp_path / ".saving-best"
    staging.mkdir()
    (tmp_path / "other").mkdir()
    final.write_text("mine") if kind == "file" else final.symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="not a folder that a run wrote"):
        publish_folder(staging, final)
    assert final.is_symlink() or final.read_text() == "mine"


def test_after_a_crash_the_old_folder_comes_back_and_foreign_names_stay(tmp_path, written):
    written.rename(tmp_path / ".saving-old-best")
    (tmp_path / ".saving-best").mkdir()
    (tmp_path / ".saving-best/half").write_bytes(b"")
    (tmp_path / ".saving-71-run.json").write_text("half")
    mine = {".saving-private", ".saving-71-private", ".saving-run.json"}
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".saving-71-best").mkdir()  # only files are staged with the number of a process
    clean_staging(tmp_path, {"best", "last", "run.json"})
    assert damage(written) is None
    assert {p.name for p in tmp_path.iterdir()} == {"best", ".saving-71-best", *mine}


# One mechanism.

ONE = {
    "FileLock": r"\bFileLock\(",
    "hash": r"\bblake2b\(",
    "fsync": r"\bfsync\(",
    "rename": r"os\.(replace|rename)\(|shutil\.move|"
    r"(?<!read)\.rename\(|"  # not of the names of tensors that were read
    r"\.replace\((?![^()]*(\([^()]*\))*[^()]*,)(?!\*)",  # of one argument: not of str
}


@pytest.mark.parametrize("what", ONE)
def test_there_is_one_place_for_it(what):
    source = Path(artifact.__file__).parent
    found = [
        path.relative_to(source).as_posix()
        for path in sorted(source.rglob("*.py"))
        for _ in re.finditer(ONE[what], path.read_text())
    ]
    assert found == ["artifact.py"]
