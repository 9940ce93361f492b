"""An index folder is whole after a kill at any time, and only files of a build are removed."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from linformer_kit import artifact
from linformer_kit.artifact import digest
from linformer_kit.errors import UserError
from linformer_kit.search import folder as folders
from linformer_kit.search.folder import INDEX, locked, remove_leftovers, write

STEPS = 12  # more than a build takes


def build(folder, value):
    """As `linformer index` does, with arrays of one value."""
    with locked(folder):
        before = None
        if (folder / INDEX).is_file():
            about = json.loads((folder / INDEX).read_bytes())
            before = {name: about[name] for name in ("generation", "digests")}
        remove_leftovers(folder)
        arrays = {"vectors": np.full((4, 2), value), "places": np.full((4, 3), value)}
        write(folder, {"value": value}, arrays, before)


def value_of(folder):
    """What all files of an index say; None if there is no index."""
    if not (folder / INDEX).exists():
        return None
    about = json.loads((folder / INDEX).read_bytes())
    for kind, known in about["digests"].items():
        path = folders.array_path(folder, kind, about["generation"])
        assert digest(path) == known
        assert (np.load(path) == about["value"]).all()
    return about["value"]


def build_and_die(folder, value, step):
    """Be killed before the nth change of a name, or with a file that is not on the disk yet."""
    seen = []

    def counted(real):
        def changed(*args, **kwargs):
            seen.append(real)
            if len(seen) > step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return changed

    for name in ("rename", "replace", "unlink"):
        setattr(Path, name, counted(getattr(Path, name)))
    folders.sync = artifact.sync = counted(artifact.sync)
    build(folder, value)


def names_in(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("first", [True, False], ids=["first", "update"])
def test_a_build_that_is_killed_at_any_step_can_be_repeated(tmp_path, first):
    context = multiprocessing.get_context("forkserver")
    codes = []
    for step in range(STEPS):
        folder = tmp_path / f"{step}"
        mine = set()
        if not first:
            build(folder, 1)
            for name in ("vectors-2.npy", "graph-4.usearch", "mine.txt"):
                (folder / name).write_text("mine")
                mine.add(name)
        process = context.Process(target=build_and_die, args=(folder, 2, step))
        process.start()
        process.join()
        codes.append(process.exitcode)
        assert value_of(folder) in ({None, 2} if first else {1, 2})
        build(folder, 3)
        assert value_of(folder) == 3
        generation = json.loads((folder / INDEX).read_bytes())["generation"]
        ours = {".lock", INDEX, f"vectors-{generation}.npy", f"places-{generation}.npy"}
        assert names_in(folder) == ours | mine
        assert all((folder / name).read_text() == "mine" for name in mine)
    assert codes[0] == -signal.SIGKILL
    assert codes[-1] == 0  # every step was tried


def test_a_generation_whose_name_a_file_has_is_skipped(tmp_path):
    build(tmp_path, 1)
    build(tmp_path, 2)
    (tmp_path / "vectors-3.npy").write_text("mine")
    (tmp_path / "places-4.npy").symlink_to("nowhere")
    build(tmp_path, 3)
    assert value_of(tmp_path) == 3
    assert (tmp_path / "vectors-3.npy").read_text() == "mine"
    assert (tmp_path / "vectors-5.npy").is_file()


def test_what_no_build_has_written_is_never_removed(tmp_path):
    staged = tmp_path / ".saving-7-vectors.npy"
    staged.write_text("half")
    (tmp_path / "vectors-1.npy").write_text("mine")
    (tmp_path / ".saving-7-index.json").write_text(
        json.dumps({"generation": 1, "digests": {"vectors": "0" * 32}})
    )
    with pytest.raises(UserError, match="exists and is not an index: it is left alone"):
        build(tmp_path, 1)
    assert (tmp_path / "vectors-1.npy").read_text() == "mine"
    (tmp_path / "vectors-1.npy").unlink()
    build(tmp_path, 1)
    assert names_in(tmp_path) == {".lock", INDEX, "vectors-1.npy", "places-1.npy"}


@pytest.mark.parametrize("kind", ["vectors", "places"])
def test_a_build_that_fails_removes_what_it_wrote(tmp_path, monkeypatch, kind):
    real = folders._write_array

    def failing(path, array):
        real(path, array)
        if path.name.endswith(f"{kind}.npy"):
            raise OSError(28, "No space left on device")

    for folder in (tmp_path / "new", tmp_path / "old"):
        if folder.name == "old":
            build(folder, 1)
        before = names_in(folder) if folder.exists() else None
        with monkeypatch.context() as patch:
            patch.setattr(folders, "_write_array", failing)
            with pytest.raises(UserError, match=r"No space left on device\. .* make room"):
                build(folder, 2)
        assert (names_in(folder) if folder.exists() else None) == before
        build(folder, 3)
        assert value_of(folder) == 3


def test_an_array_is_the_file_of_np_save(tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    folders._write_array(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", np.ascontiguousarray(array))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
