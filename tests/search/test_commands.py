"""`linformer index` and `linformer search`."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from linformer_kit.search.index import Index

from ..cli.test_main import run as command
from ..train import commands
from .conftest import WORDS

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

    def paused(self, rows, *more):
        if not place.with_suffix(".seen").exists():
            place.with_suffix(".seen").touch()
            commands.pause(place)
        return vectors(self, rows, *more)

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
    assert {path.name for path in out.iterdir()} == {".lock", ".finished.jsonl"}
    assert commands.run(tmp_path / "room", *words)[0] == 0
    assert not (out / ".finished.jsonl").exists()
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


def die_in_vectors(given):
    """Be killed when the nth batch of passages of this start is a vector."""
    from linformer_kit.search import embedder

    seen, at = [], given
    embedder.TOKENS_PER_BATCH = 48
    real = embedder.Embedder.vectors

    def dying(self, rows, tell):
        def counted(done):
            seen.append(done)
            tell(done)
            if len(seen) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        return real(self, rows, counted)

    embedder.Embedder.vectors = dying


def left_to_read(said):
    (found,) = re.findall(r"(\d+) of 10 documents to read", said)
    return int(found)


def test_a_build_that_is_killed_five_times_reads_no_finished_document_twice(model, tmp_path):
    documents = tmp_path / "documents"
    documents.mkdir()
    rng = np.random.default_rng(0)
    for number in range(10):
        words = rng.choice(WORDS, 40 + 40 * (number % 4))
        (documents / f"{number}.txt").write_text(" ".join(words))
    (documents / "twin.md").write_bytes((documents / "3.txt").read_bytes())  # read once
    (documents / "0.txt").unlink()
    words = ["index", documents, "--model", model, "--passage", "12", "--out"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, said, _ = commands.run(tmp_path / "log", *words, whole, before=die_in_vectors, given=0)
    assert code == 0
    total = int(re.search(r"([\d,]+) tokens read", said)[1].replace(",", ""))
    kept = killed / ".finished.jsonl"
    finished = []
    for start, batches in enumerate((2, 9, 4, 11, 7)):
        code, _, said = commands.run(
            tmp_path / f"{start}", *words, killed, before=die_in_vectors, given=batches
        )
        assert code == -signal.SIGKILL
        assert left_to_read(said) == 9 - len(finished)
        lines = kept.read_text().splitlines() if kept.exists() else []
        finished = [json.loads(line)["document"] for line in lines if line.endswith("}")]
        assert len(set(finished)) == len(finished)  # none twice
        if lines and start % 2:  # as if it was killed while it wrote
            with kept.open("a") as file:
                file.write(lines[-1][: 30 + 60 * start])
    assert 3 < len(finished) < 9
    code, said, err = commands.run(tmp_path / "last", *words, killed)
    assert code == 0
    assert left_to_read(err) == 9 - len(finished)
    assert "were read by a build that was interrupted" in err
    assert int(re.search(r"([\d,]+) tokens read", said)[1].replace(",", "")) < total
    for name in ("vectors-1.npy", "places-1.npy"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert {path.name for path in killed.iterdir()} == {path.name for path in whole.iterdir()}


def test_ctrl_c_says_that_the_documents_are_kept(model, documents, tmp_path):
    out, place = tmp_path / "i", tmp_path / "paused"
    words = ["index", documents, "--model", model, "--out", out, "--passage", "12"]
    first = commands.start(tmp_path / "first", *words, before=pause_in_second, given=place)
    first.wait_for(place.exists)
    first.send(signal.SIGINT)
    assert first.wait() == 130
    assert f"the documents that were read are kept in {out}. The same command resumes." in first.err
    assert "Traceback" not in first.err
    code, _, err = commands.run(tmp_path / "again", *words)
    assert (code, "2 of 3 documents to read" in err) == (0, True)


def pause_in_second(place):
    from linformer_kit.search.embedder import Embedder

    vectors, seen = Embedder.vectors, []

    def paused(self, rows, *more):
        seen.append(rows)
        if len(seen) == 2:
            commands.pause(place)
        return vectors(self, rows, *more)

    Embedder.vectors = paused


@pytest.mark.parametrize("content", [b"mine", b"mine\n{}\n", b'{"kind": "other"}\n'])
def test_a_file_of_the_user_in_place_of_finished_documents_is_left_alone(
    capsys, model, documents, tmp_path, content
):
    out = tmp_path / "i"
    words = ["index", str(documents), "--model", str(model), "--out", str(out)]
    assert command(capsys, *words)[0] == 0
    (out / ".finished.jsonl").write_bytes(content)
    code, _, err = command(capsys, *words)
    assert (code, "left alone" in err) == (2, True)
    assert (out / ".finished.jsonl").read_bytes() == content


@pytest.mark.parametrize("width", [40, 80, 120])
def test_passages_on_a_terminal_are_whole_words(capsys, monkeypatch, model, tmp_path, width):
    documents = tmp_path / "documents"
    documents.mkdir()
    text = "the " + " ".join(f"{word}-{number}" for number in range(40) for word in WORDS)
    (documents / "a.txt").write_text(f"{text} \x1b[31m end")
    words = ["--model", str(model), "--out", str(tmp_path / "i"), "--passage", "20"]
    assert command(capsys, "index", str(documents), *words)[0] == 0
    monkeypatch.setattr(sys.stdout.__class__, "isatty", lambda self: True)
    monkeypatch.setenv("COLUMNS", str(width))
    for query in ("road-7", "old-22 new-22", "two-39"):
        code, said, _ = command(capsys, "search", str(tmp_path / "i"), query, "--top", "1")
        head, *lines = said.splitlines()
        assert code == 0
        assert "a.txt" in head
        assert all(line.startswith("    ") and len(line) <= width for line in lines)
        shown = " ".join(line.strip() for line in lines).removesuffix(" ...").split()
        assert set(shown) <= set(text.split()) | {"[31m", "end"}
        assert len(shown) > 3
