"""`linformer index` and `linformer search`."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from linformer_kit.search.index import Index

from ..cli.test_main import run as command
from ..train import commands

LINFORMER = Path(sys.executable).with_name("linformer")


def test_the_commands(capsys, model, documents, tmp_path):
    out = tmp_path / "i"
    build_it = ["index", str(documents), "--model", str(model), "--out", str(out)]
    code, said, err = command(capsys, *build_it, "--passage", "12")
    assert code == 0
    assert "3 documents" in said
    assert "photo.png" in err
    code, said, _ = command(capsys, "search", str(out), "two bird three bird", "--top", "1")
    assert code == 0
    hit = json.loads(said)
    assert (hit["path"], hit["passage"]) == ("bird.txt", "two bird three bird")
    (documents / "bird.txt").write_text("changed")
    code, said, err = command(capsys, "search", str(out), "two bird three bird", "--top", "1")
    assert json.loads(said)["passage"] is None
    assert "bird.txt has changed since the index was built" in err
    code, _, err = command(capsys, "search", str(out), " ")
    assert (code, "the query is empty" in err) == (2, True)
    code, _, err = command(capsys, "search", str(tmp_path / "no"), "x")
    assert (code, "is no index" in err) == (2, True)


def pause_in_vectors(place):
    """Pause before the first passages become vectors."""
    from linformer_kit.search.embedder import Embedder

    vectors = Embedder.vectors

    def paused(self, rows):
        if not place.with_suffix(".seen").exists():
            place.with_suffix(".seen").touch()
            commands.pause(place)
        return vectors(self, rows)

    Embedder.vectors = paused


def test_a_second_build_of_an_index_is_refused_while_the_first_runs(model, documents, tmp_path):
    out, place = tmp_path / "i", tmp_path / "paused"
    words = ["index", documents, "--model", model, "--out", out, "--passage", "12"]
    first = commands.start(tmp_path / "first", *words, before=pause_in_vectors, given=place)
    first.wait_for(place.exists)
    code, said, err = commands.run(tmp_path / "second", *words)
    assert (code, said) == (2, "")
    (refusal,) = [line for line in err.splitlines() if "photo.png" not in line]
    assert f"{out} is in use by process {first.process.pid} on " in refusal
    assert refusal.endswith("name another folder with --out.")
    commands.resume(place)
    assert first.wait() == 0
    assert len(Index(out).about["documents"]) == 3
    assert commands.run(tmp_path / "third", *words)[0] == 0


def limit_file_size(size):
    """Let no file grow beyond a size, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_build_on_a_full_disk_changes_nothing_and_can_be_repeated(model, documents, tmp_path):
    out = tmp_path / "i"
    words = ["index", documents, "--model", model, "--out", out, "--passage", "12"]
    code, _, err = commands.run(tmp_path / "full", *words, before=limit_file_size, given=2048)
    assert code == 2
    assert "File too large" in err
    assert "make room" in err
    assert not out.exists()
    assert commands.run(tmp_path / "room", *words)[0] == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    code, _, _ = commands.run(tmp_path / "full", *words, before=limit_file_size, given=2048)
    assert code == 2
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert np.isfinite(Index(out).vectors).all()


def test_a_folder_that_was_moved_is_given_with_documents_moved(capsys, model, documents, tmp_path):
    words = ["--model", str(model), "--out", str(tmp_path / "i")]
    assert command(capsys, "index", str(documents), *words)[0] == 0
    moved = documents.rename(tmp_path / "moved")
    code, said, err = command(capsys, "index", str(moved), *words)
    assert (code, said, err.count("\n")) == (2, "", 1)
    assert str(documents) in err
    assert str(moved) in err
    code, said, _ = command(capsys, "index", str(moved), *words, "--documents-moved")
    assert (code, "0 removed, 3 unchanged" in said) == (0, True)
    code, said, err = command(capsys, "search", str(tmp_path / "i"), "two bird", "--top", "3")
    assert (code, err) == (0, "")
    assert all(json.loads(line)["passage"] for line in said.splitlines())


def test_a_file_name_that_is_not_utf8_is_an_escape_in_valid_json(model, tmp_path):
    documents = tmp_path / "documents"
    documents.mkdir()
    names = [os.fsdecode(b"caf\xe9.txt"), "été.txt"]
    for name in names:
        (documents / name).write_text("two bird three bird")
    words = ["--model", model, "--out", tmp_path / "i"]
    assert commands.run(tmp_path / "log", "index", documents, *words)[0] == 0
    said = subprocess.run(
        [LINFORMER, "search", tmp_path / "i", "two bird"],
        capture_output=True,
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "utf-8:surrogateescape"},
        check=True,
    ).stdout
    lines = said.decode("utf-8").splitlines()
    assert {json.loads(line)["path"] for line in lines} == set(names)
    assert any('"caf\\udce9.txt"' in line for line in lines)
    assert any('"été.txt"' in line for line in lines)
