"""The folder of prepared data: complete or absent, shared by processes, and nothing else's."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from linformer_kit.config.load import load
from linformer_kit.data import store
from linformer_kit.data.prepare import fingerprint, prepare
from linformer_kit.errors import UserError

from ..train import tiny
from .limits import at_most, files_of_at_most, ordinary_user


def tree(folder):
    """Everything in a folder, with the content of its files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def config(tmp_path):
    return load(tiny.write(tmp_path))


@pytest.fixture
def folder(config):
    return Path(config.data.cache) / fingerprint(config)


# Damage: everything is prepared again, to the same content.


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def scramble(path):
    path.write_bytes(bytes(byte ^ 0x5A for byte in path.read_bytes()))


DAMAGES = {
    "cut rows": lambda folder: cut(folder / "train.arrow"),
    "scrambled rows": lambda folder: scramble(folder / "test.arrow"),
    "no rows": lambda folder: (folder / "validation.arrow").unlink(),
    "cut meta": lambda folder: cut(folder / "meta.json"),
    "scrambled meta": lambda folder: scramble(folder / "meta.json"),
    "no meta": lambda folder: (folder / "meta.json").unlink(),
    "meta of another type": lambda folder: (folder / "meta.json").write_text("[]"),
    "meta without keys": lambda folder: (folder / "meta.json").write_text("{}"),
    "no tokenizer": lambda folder: shutil.rmtree(folder / "tokenizer"),
    "cut tokenizer": lambda folder: cut(folder / "tokenizer" / "tokenizer.json"),
    "scrambled tokenizer": lambda folder: scramble(folder / "tokenizer" / "tokenizer.json"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_data_is_prepared_again_and_said(config, folder, caplog, name):
    digest = prepare(config).meta["digest"]
    before = tree(folder)
    DAMAGES[name](folder)
    again = prepare(config)
    assert again.meta["digest"] == digest
    assert set(tree(folder)) == set(before)
    assert tree(folder)["train.arrow"] == before["train.arrow"]
    (record,) = caplog.records
    assert "is damaged" in record.getMessage()
    assert "it is prepared again" in record.getMessage()


@pytest.mark.parametrize("damage", [scramble, Path.unlink])
@pytest.mark.parametrize("part", ["train.arrow", "tokenizer/tokenizer.json", "meta.json"])
def test_what_is_damaged_after_it_was_checked_is_one_line(config, folder, part, damage):
    prepared = prepare(config)
    damage(folder / part)
    with pytest.raises(
        UserError, match=r"cannot read the prepared data .* Remove .*prepared again"
    ):
        [prepared.meta, prepared.tokenizer(), prepared.part("train")]


# Ownership: what was not written here is never removed.


def test_files_of_the_user_in_the_same_folder_stay(config, folder):
    cache = folder.parent
    (cache / "thesis").mkdir(parents=True)
    (cache / "thesis" / "a.txt").write_text("years of work")
    (cache / "b.partial").mkdir()
    (cache / "b.partial" / "c.txt").write_text("more of it")
    (cache / "d.lock").write_text("mine")
    before = tree(cache)
    prepare(config)
    cut(folder / "train.arrow")
    prepare(config)
    assert before.items() <= tree(cache).items()


@pytest.mark.parametrize("suffix", ["", ".partial"])
@pytest.mark.parametrize("kind", ["folder", "file", "link", "folder with our file names"])
def test_what_has_the_name_of_ours_and_is_not_is_refused_as_it_is(config, folder, suffix, kind):
    place = folder.with_name(folder.name + suffix)
    folder.parent.mkdir()
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / store.MARKER).touch()
    (elsewhere / "thesis.txt").write_text("years of work")
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "thesis.txt").write_text("years of work")
        if kind != "folder":
            (place / "meta.json").write_text("{}")
            (place / "train.arrow").write_text("mine")
    before = tree(folder.parent)
    with pytest.raises(UserError, match=r"is in the way of prepared data and is left as it is"):
        prepare(config)
    after = tree(folder.parent)
    after.pop(f"{folder.name}.lock")
    assert after == before


@pytest.mark.parametrize("foreign", ["thesis.txt", "tokenizer/notes.md", "more/a.txt", "link"])
def test_a_folder_of_ours_with_a_foreign_file_is_refused_as_it_is(config, folder, foreign):
    prepare(config)
    path = folder / foreign
    path.parent.mkdir(exist_ok=True)
    if foreign == "link":
        (folder / "train.arrow").unlink()
        path = folder / "train.arrow"
        path.symlink_to(folder.parent.parent / "text.txt")
    else:
        path.write_text("mine")
        cut(folder / "train.arrow")
    before = tree(folder.parent.parent)
    with pytest.raises(UserError, match=r"is left as it is: it holds (thesis|tok|more|train)"):
        prepare(config)
    assert tree(folder.parent.parent) == before


@pytest.mark.parametrize("marked", [False, True])
def test_an_empty_folder_of_a_killed_process_is_replaced(config, folder, marked):
    for path in (folder, folder.with_name(f"{folder.name}.partial")):
        path.mkdir(parents=True)
        if marked:
            (path / store.MARKER).touch()
    prepare(config)
    assert store.damage(folder) is None
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


# The disk and its rights.


@pytest.mark.parametrize("size", [20, 1000, 6000])
def test_a_full_disk_is_one_line_and_leaves_no_folder(config, folder, size):
    with (
        files_of_at_most(size),
        pytest.raises(UserError, match=r"cannot keep prepared data in .* Make room there"),
    ):
        prepare(config)
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == []
    prepare(config)
    assert store.damage(folder) is None


@pytest.mark.parametrize("kind", ["read-only folder", "file"])
def test_a_cache_that_cannot_be_written_is_one_line(open_folder, kind):
    config = load(tiny.write(open_folder))
    prepare(config)  # whatever is imported late is imported as root
    place = open_folder / "closed"
    if kind == "file":
        place.write_text("mine")
    else:
        place.mkdir(mode=0o555)
    data = config.data.model_copy(update={"cache": str(place)})
    with ordinary_user(), pytest.raises(UserError, match=r"cannot keep prepared data in .*closed"):
        prepare(config.model_copy(update={"data": data}))
    assert place.is_dir() or place.read_text() == "mine"


# Processes.


def prepare_in_a_process(path: Path, log: Path, stop_at: str, seconds: float) -> None:
    """Prepare, and say on the way what is done; wait for `seconds` where `stop_at` is said."""
    waited = False

    def tell(what: str, done: int, total: int) -> None:
        nonlocal waited
        with log.open("a") as file:
            file.write(what + "\n")
        if what == stop_at and not waited:
            waited = True
            time.sleep(seconds)

    prepared = prepare(load(path), tell=tell)
    assert store.damage(prepared.folder) is None


def start(*arguments):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["linformer_kit.train.run", "linformer_kit.evaluate.evaluation"])
    process = context.Process(target=prepare_in_a_process, args=arguments)
    process.start()
    return process


def wait_for(condition):
    with at_most(60):
        while not condition():
            time.sleep(0.01)


def said(log):
    return log.read_text().splitlines() if log.exists() else []


def test_two_processes_prepare_the_same_data_once(tmp_path):
    path = tiny.write(tmp_path)
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    first = start(path, logs[0], "tokenizing", 1.5)
    wait_for(lambda: "tokenizing" in said(logs[0]))
    second = start(path, logs[1], "", 0)
    wait_for(lambda: said(logs[1]))
    assert first.is_alive()
    first.join(60)
    second.join(60)
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert set(said(logs[1])) == {"waiting for a process that prepares the same"}


@pytest.mark.parametrize("moment", ["training the tokenizer", "tokenizing"])
def test_a_killed_preparation_is_done_again(tmp_path, moment):
    path = tiny.write(tmp_path)
    config = load(path)
    folder = Path(config.data.cache) / fingerprint(config)
    log = tmp_path / "killed.log"
    process = start(path, log, moment, 600)
    wait_for(lambda: moment in said(log))
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    partial = folder.with_name(f"{folder.name}.partial")
    assert partial.is_dir()
    assert not folder.exists()
    with at_most(60):  # the lock went with its process
        prepare(config)
    assert store.damage(folder) is None
    assert not partial.exists()
