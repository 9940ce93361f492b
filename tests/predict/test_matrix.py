"""Vectors of a file as a matrix: rows in order, what each was made of, killed and resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from linformer_kit.errors import UserError
from linformer_kit.predict.answers import Options, Predictor, predict_texts
from linformer_kit.predict.journal import Journal
from linformer_kit.predict.matrix import MatrixWriter

from ..cli.test_main import run as command
from .test_file_job import Killed, answer, killed_after, write

TEXTS = ["The old dog runs.", "bird " * 30, "x", "a cat"]


def rows_of(out):
    lines = out.with_name(f"{out.name}.rows.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def expected(folder, texts, **options):
    found = predict_texts(folder, texts, options=Options(**options), on_overflow="chunk")
    return np.asarray([one.answers[0]["vector"] for one in found], dtype=np.float32)


@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_matrix_holds_the_vectors_in_the_order_of_the_input(runs, tmp_path, kind, size):
    folder, out = runs("embed"), tmp_path / "out.npy"
    source = write(tmp_path / f"in.{kind}", TEXTS)
    totals, said = answer(folder, source, out, options=Options(size=size))
    assert (totals.answered, said) == (4, [])
    found = np.load(out, allow_pickle=False)
    assert found.dtype == np.float32
    assert found.shape == (4, size or 16)
    np.testing.assert_allclose(found, expected(folder, TEXTS, size=size), atol=1e-5)
    first = 2 if kind == "csv" else 1  # a table of text has a header
    word = "line" if kind == "csv" else "row"
    assert [(row["row"], row["input"]) for row in rows_of(out)] == [
        (number, f"{word} {first + number}") for number in range(4)
    ]
    assert rows_of(out)[1]["tokens_total"] == 152  # characters and their frame, in pieces
    assert all(row["tokens_read"] == row["tokens_total"] for row in rows_of(out))
    assert {path.name for path in tmp_path.iterdir()} == {
        source.name, "out.npy", "out.npy.rows.jsonl", "out.npy.predict.json",
    }  # fmt: skip


def test_a_row_without_an_answer_is_nan_and_says_why(runs, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("a dog")
    (texts / "b.txt").write_text("  ")
    (texts / "c.txt").write_text("a cat")
    totals, _ = answer(runs("embed"), texts, tmp_path / "out.npy")
    assert (totals.answered, totals.failed) == (2, 1)
    found = np.load(tmp_path / "out.npy")
    np.testing.assert_array_equal(np.isnan(found).all(1), [False, True, False])
    rows = rows_of(tmp_path / "out.npy")
    assert [row["input"] for row in rows] == ["a.txt", "b.txt", "c.txt"]
    assert [row["prediction_error"] for row in rows] == [None, "the input is empty.", None]


def test_a_line_that_cannot_be_read_is_a_row_of_nan(runs, tmp_path):
    (tmp_path / "in.txt").write_bytes(b"a dog\n\xff\na cat\n")
    totals, _ = answer(runs("embed"), tmp_path / "in.txt", tmp_path / "out.npy")
    assert (totals.rows, totals.answered, totals.failed, totals.left_out) == (3, 2, 1, 0)
    found = np.load(tmp_path / "out.npy")
    assert found.shape == (3, 16)
    np.testing.assert_array_equal(np.isnan(found).all(1), [False, True, False])
    rows = rows_of(tmp_path / "out.npy")
    assert [row["input"] for row in rows] == ["line 1", "line 2", "line 3"]
    assert "not UTF-8" in rows[1]["prediction_error"]


def test_a_begun_matrix_that_lacks_rows_of_the_input_is_not_continued(runs, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.csv", ["a cat"] * 4), tmp_path / "out.npy"
    restore = killed_after(monkeypatch, 2)
    with pytest.raises(Killed):
        answer(runs("embed"), source, out)
    restore()
    path = out.with_name("out.npy.predict.json")
    journal = json.loads(path.read_text())
    journal["totals"]["rows"] += 1
    journal["totals"]["left_out"] += 1
    path.write_text(json.dumps(journal))
    with pytest.raises(ValueError, match="a row for each of the 3 rows that were read: got 2, as"):
        answer(runs("embed"), source, out)


@pytest.mark.parametrize("at", ["before the journal", "after the journal", "in the finish"])
def test_a_killed_job_goes_on_with_the_same_matrix(runs, tmp_path, monkeypatch, at):
    folder = runs("embed")
    texts = [f"dog {number} " * (1 + number % 7) for number in range(30)]
    source = write(tmp_path / "in.csv", texts)
    answer(folder, source, tmp_path / "whole.npy", tokens_per_batch=8)
    out, kills = tmp_path / "out.npy", 0
    save, finish = Journal.save, MatrixWriter.finish
    for _ in range(60):
        left = [1 + kills % 3]

        def stops(journal, *, finished=False, left=left):
            left[0] -= 1
            if at != "before the journal" or left[0] > 0 or finished:
                save(journal, finished=finished)
            if left[0] <= 0 and not (finished or at == "in the finish"):
                raise Killed

        def cut(writer, out, first=not kills):
            if at == "in the finish" and first:
                (writer.partial / ".saving-rows").write_text("torn")
                raise Killed
            finish(writer, out)

        monkeypatch.setattr(Journal, "save", stops)
        monkeypatch.setattr(MatrixWriter, "finish", cut)
        try:
            answer(folder, source, out, tokens_per_batch=8)
            break
        except Killed:
            kills += 1
            assert not out.exists()
    assert kills >= 1
    np.testing.assert_array_equal(np.load(out), np.load(tmp_path / "whole.npy"))
    assert rows_of(out) == rows_of(tmp_path / "whole.npy")
    assert not out.with_name("out.npy.partial").exists()
    before = out.stat().st_mtime_ns
    _, said = answer(folder, source, out, tokens_per_batch=8)
    assert said == [f"{out} is finished: it is as it was."]
    assert out.stat().st_mtime_ns == before


def test_nothing_is_overwritten_and_other_tasks_are_refused(capsys, runs, tmp_path):
    source = write(tmp_path / "in.csv")
    (tmp_path / "a.npy.rows.jsonl").write_text("mine")
    (tmp_path / "b.npy").write_text("mine")
    for name in ("a", "b"):
        with pytest.raises(ValueError, match="was not written by this command"):
            answer(runs("embed"), source, tmp_path / f"{name}.npy")
    assert (tmp_path / "a.npy.rows.jsonl").read_text() == "mine"
    assert not (tmp_path / "a.npy").exists()
    run, out = str(runs("classify").path), str(tmp_path / "c.npy")
    capsys.readouterr()
    code, _, err = command(capsys, "predict", run, "--file", str(source), "--out", out)
    assert code == 2
    assert "holds vectors, which only the task 'embed' gives" in err


def test_a_size_that_a_vector_does_not_have_is_refused(runs):
    with pytest.raises(UserError, match=r"size must be at most 16, .*: got 17"):
        Predictor(runs("embed"), options=Options(size=17))
