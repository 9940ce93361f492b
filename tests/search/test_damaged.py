"""Damaged index folders: `linformer search` and `linformer index` end with one clear line.

Each damage meets three folders: as it is, with digests made anew (as by someone who edits an index)
and of version 1, which has none. No command changes a damaged folder.
"""

from __future__ import annotations

import json
import os
import shutil
from functools import cache

import numpy as np
import pytest

from linformer_kit.artifact import digest
from linformer_kit.search.build import update
from linformer_kit.search.embedder import Embedder
from linformer_kit.search.folder import own_digest

from ..cli.test_main import run as command

INDEX = "index.json"
STATES = ("as it is", "sealed", "version 1")
sealed_first = ["sealed", *(pytest.param(state, marks=pytest.mark.slow) for state in STATES[::2])]


loaded = cache(Embedder)


def edit(change):
    def act(folder):
        about = json.loads((folder / INDEX).read_text())
        about = change(about) or about
        (folder / INDEX).write_text(json.dumps(about))

    return act


def place(about, path):
    *parents, last = path.split(".")
    for name in parents:
        about = about[int(name) if name.isdigit() else name]
    return about, last


def without(path):
    def change(about):
        holder, last = place(about, path)
        del holder[last]

    return edit(change)


def with_value(path, value):
    def change(about):
        holder, last = place(about, path)
        holder[last] = value

    return edit(change)


def array(kind, change):
    def act(folder):
        path = folder / f"{kind}-1.npy"
        np.save(path, change(np.load(path)), allow_pickle=True)

    return act


def put(name, content):
    return lambda folder: (folder / name).write_bytes(content) and None


def cut(name, share):
    def act(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return act


def replaced(name, make):
    def act(folder):
        (folder / name).unlink()
        make(folder / name)

    return act


def swapped(folder):
    one, other = folder / "vectors-1.npy", folder / "places-1.npy"
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


def at(row, column, value):
    def change(values):
        values[row, column] = value
        return values

    return change


def flipped(name):
    def act(folder):
        content = bytearray((folder / name).read_bytes())
        content[-20] ^= 1
        (folder / name).write_bytes(content)

    return act


KEYS = (
    "kind", "version", "source", "passage", "model", "model.folder", "model.digest", "generation",
    "documents", "documents.0.path", "documents.1.digest", "documents.2.tokens",
)  # fmt: skip
WRONG = {
    "version": (None, "2", 0, 3, True, 1.5),
    "source": (None, 5, "", "a\0b", ["a"]),
    "passage": (None, "12", 0, -1, True, 12.5),
    "generation": (None, "1", 0, -1, 2, 10**30, True, 1.0, [1]),
    "model": (None, "m", [], {}, 1),
    "model.folder": (None, 1, "", "nowhere", "\0"),
    "model.digest": (None, 1, "", "0" * 32),
    "documents": (None, {}, [], "a", 1, [1, 2, 3], [[], [], []], [{}, {}, {}]),
    "documents.0.path": (None, 1, "", "/etc/passwd", "../x", "\0", "dog.txt", {"a": 1}),
    "documents.0.digest": (None, 1, "", []),
    "documents.0.tokens": (None, "5", -1, 0, 1.5, False),
}
DAMAGE = {
    **{f"{key} missing": without(key) for key in KEYS},
    **{
        f"{key} = {json.dumps(value)[:20]}": with_value(key, value)
        for key, values in WRONG.items()
        for value in values
    },
    "a document too few": edit(lambda about: about["documents"].pop() and None),
    "a document too many": edit(
        lambda about: about["documents"].append({"path": "x", "digest": "0", "tokens": 1})
    ),
    "a document twice": edit(lambda about: about["documents"].append(about["documents"][0])),
    "index.json truncated": cut(INDEX, 0.5),
    "index.json empty": put(INDEX, b""),
    "index.json garbage": put(INDEX, b"{{{"),
    "index.json binary": put(INDEX, b"\xff\xfe\x00\x01"),
    "index.json a list": put(INDEX, b"[1]"),
    "index.json null": put(INDEX, b"null"),
    "index.json nested": put(INDEX, b"[" * 100_000),
    "index.json of endless digits": put(INDEX, b'{"version": ' + b"9" * 9999 + b"}"),
    "index.json gone": lambda folder: (folder / INDEX).unlink(),
    "index.json a folder": replaced(INDEX, lambda path: path.mkdir()),
    "index.json a FIFO": replaced(INDEX, os.mkfifo),
    "swapped": swapped,
    **{
        f"{kind} {name}": act
        for kind in ("vectors", "places")
        for name, act in {
            "truncated": cut(f"{kind}-1.npy", 0.9),
            "half a header": cut(f"{kind}-1.npy", 0.02),
            "empty": put(f"{kind}-1.npy", b""),
            "garbage": put(f"{kind}-1.npy", b"garbage" * 50),
            "zipped": put(f"{kind}-1.npy", b"PK\x03\x04" + b"\0" * 100),
            "gone": lambda folder, kind=kind: (folder / f"{kind}-1.npy").unlink(),
            "a folder": replaced(f"{kind}-1.npy", lambda path: path.mkdir()),
            "a FIFO": replaced(f"{kind}-1.npy", os.mkfifo),
            "a link to nothing": replaced(
                f"{kind}-1.npy", lambda path: path.symlink_to("nowhere")
            ),
            "of objects": array(kind, lambda values: values.astype(object)),
            "of text": array(kind, lambda values: values.astype(str)),
            "of another type": array(kind, lambda values: values.astype(np.float64)),
            "of other bytes": array(kind, lambda values: values.astype(f">{values.dtype.str[1:]}")),
            "flat": array(kind, np.ravel),
            "nested": array(kind, lambda values: values[None]),
            "a row less": array(kind, lambda values: values[:-1]),
            "without rows": array(kind, lambda values: values[:0]),
            "a column less": array(kind, lambda values: values[:, :-1]),
        }.items()
    },
    "vectors of NaN": array("vectors", at(0, 0, np.nan)),
    "vectors of inf": array("vectors", at(0, 0, np.inf)),
    "vectors too long": array("vectors", at(0, 0, 1e30)),
    "places before the first document": array("places", at(0, 0, -1)),
    "places after the last document": array("places", at(-1, 0, 99)),
    "places before the text": array("places", at(0, 1, -1)),
    "places that end before they begin": array("places", at(0, 2, -5)),
    "places of one document": array("places", lambda values: values * [0, 1, 1]),
}  # fmt: skip
# Seen only where there is something to compare with: a digest that the file is of.
WITH_DIGEST = {
    "a bit of the vectors": flipped("vectors-1.npy"),
    "a bit of the places": flipped("places-1.npy"),
    "no digest of the vectors": without("digests.vectors"),
    "no digest of index.json": without("digest"),
    "no digests": without("digests"),
    **{f"digests = {json.dumps(v)}": with_value("digests", v) for v in (None, {}, [], "a", 5)},
    "another digest": with_value("digest", "0" * 32),
    "another passage": with_value("passage", 13),
    "another source": with_value("source", "/etc"),
    "another digest of a document": with_value("documents.0.digest", "0" * 32),
    "a digest of a graph that is gone": with_value("digests.graph", "0" * 32),
    "a digest of something else": with_value("digests.code", "0" * 32),
}
# The model of the index is named with --model here, and index.json does not say it.
NOT_USED = ('model.folder = "nowhere"',)


def seal(folder):
    """Digests as a build would write them, where there is what they are of."""
    path = folder / INDEX
    if not path.is_file():
        return
    try:
        about = json.loads(path.read_text())
        for kind in about["digests"]:
            file = folder / f"{kind}-1.npy"
            if file.is_file():
                about["digests"][kind] = digest(file)
        about["digest"] = own_digest(about)
        path.write_text(json.dumps(about))
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # too damaged to be sealed


def contents(folder):
    return {
        path.name: path.read_bytes() if path.is_file() else path.lstat().st_mode
        for path in folder.iterdir()
    }


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    """An index, and its documents beside it."""
    home = tmp_path_factory.mktemp("made")
    (home / "documents").mkdir()
    texts = {"a.txt": "two bird three bird " * 5, "dog.txt": "the dog runs", "z.txt": "a fish"}
    for name, text in texts.items():
        (home / "documents" / name).write_text(text)
    update(home / "documents", home / "index", Embedder(model), passage=12, say=print)
    return home


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    monkeypatch.setattr("linformer_kit.search.embedder.Embedder", loaded)


def meet(capsys, model, made, folder):
    """What both commands answer; neither changes the folder."""
    before = contents(folder)
    for words in (
        ["search", str(folder), "two bird", "--model", str(model)],
        ["index", str(made / "documents"), "--model", str(model), "--out", str(folder),
         "--passage", "12"],
    ):  # fmt: skip
        code, said, err = command(capsys, *words)
        assert (code, said, err.count("\n")) == (2, "", 1), (words[0], err)
        assert err.startswith("linformer: ")
        assert "Traceback" not in err
        assert "Error:" not in err, err  # the name of an exception is no sentence
        assert contents(folder) == before


@pytest.mark.parametrize("state", sealed_first)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_a_clear_error(capsys, model, made, tmp_path, damage, state):
    if state == "version 1" and damage.startswith("version"):
        pytest.skip("it is of version 1")
    folder = shutil.copytree(made / "index", tmp_path / "index")
    if state == "version 1":
        with_value("version", 1)(folder)
        without("digest")(folder)
        without("digests")(folder)
    DAMAGE[damage](folder)
    if state == "sealed":
        seal(folder)
    if damage in NOT_USED and state != "as it is":
        pytest.skip("is not used")
    meet(capsys, model, made, folder)


@pytest.mark.parametrize("damage", WITH_DIGEST)
def test_what_only_a_digest_can_tell_is_a_clear_error(capsys, model, made, tmp_path, damage):
    folder = shutil.copytree(made / "index", tmp_path / "index")
    WITH_DIGEST[damage](folder)
    meet(capsys, model, made, folder)


def test_what_is_not_damaged_is_read(capsys, model, made, tmp_path):
    for state in STATES:
        folder = shutil.copytree(made / "index", tmp_path / state)
        if state == "version 1":
            with_value("version", 1)(folder)
            without("digest")(folder)
            without("digests")(folder)
        else:
            seal(folder)
        words = ["search", str(folder), "two bird", "--model", str(model)]
        code, said, err = command(capsys, *words)
        assert (code, said.count("\n"), err) == (0, 3, "")


def test_places_beyond_the_text_are_a_clear_error(capsys, model, made, tmp_path):
    folder = shutil.copytree(made / "index", tmp_path / "index")
    array("places", at(0, 2, 10_000))(folder)
    seal(folder)
    code, _, err = command(capsys, "search", str(folder), "two bird", "--model", str(model))
    assert (code, "must end within its 100 characters: got 10,000" in err) == (2, True)


def test_a_model_that_is_gone_is_named(capsys, made, tmp_path):
    folder = shutil.copytree(made / "index", tmp_path / "index")
    with_value("model.folder", "/nowhere")(folder)
    seal(folder)
    code, said, err = command(capsys, "search", str(folder), "two bird")
    assert (code, said, err.count("\n")) == (2, "", 1)
    assert "the model of the index, /nowhere, is gone. Say where it is now with --model." in err
