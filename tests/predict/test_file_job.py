"""Whole files through a model: every format, bad rows, killed and resumed, nothing overwritten."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from linformer_kit.data import files
from linformer_kit.predict import file_job
from linformer_kit.predict.answers import Options, Predictor, predict_texts
from linformer_kit.predict.file_job import Progress, predict_file
from linformer_kit.predict.inputs import Input
from linformer_kit.predict.journal import Journal
from linformer_kit.predict.writers import LineWriter

from ..cli.test_main import run as command

TEXTS = [
    "The old dog runs.",
    'a "quoted" cat, jumps',
    "bird " * 30,
    "ä\u0301 hill\tand\ta river",
    "x",
]
KINDS = ("csv", "tsv", "jsonl", "parquet")


def write(path, texts=TEXTS):
    """A table with a number, the texts and a note."""
    rows = [(number, text, f"note {number}") for number, text in enumerate(texts)]
    kind = path.suffix[1:]
    if kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "text", "note"), *rows])
    elif kind == "tsv":
        lines = ["id\ttext\tnote"]
        lines += ["\t".join((str(n), t.replace("\t", " "), note)) for n, t, note in rows]
        path.write_text("\n".join(lines) + "\n")
    elif kind == "jsonl":
        lines = [json.dumps({"id": n, "text": t, "note": note}) for n, t, note in rows]
        path.write_text("\n".join(lines) + "\n")
    else:
        columns = list(zip(*rows, strict=True))
        made = pa.table(
            {"id": pa.array(columns[0], pa.int16()), "text": columns[1], "note": columns[2]}
        )
        pq.write_table(made, path)
    return path


def read(path):
    """The rows of a table as dictionaries of text."""
    kind = path.suffix[1:]
    if kind == "csv":
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
    elif kind == "tsv":
        rows = list(csv.DictReader(path.open(), delimiter="\t", quoting=csv.QUOTE_NONE))
    elif kind == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = pq.read_table(path).to_pylist()
    return [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in rows
    ]


def answer(folder, source, out, **options):
    said = []
    policy = options.pop("on_overflow", "chunk")
    tokens = options.pop("tokens_per_batch", 64)
    chosen = options.pop("options", Options(top=1))
    predictor = Predictor(folder, options=chosen, on_overflow=policy, tokens_per_batch=tokens)
    config = folder.config()
    totals = predict_file(predictor, config, str(source), out, say=said.append, **options)
    return totals, said


def expected(folder, texts, policy="chunk"):
    found = predict_texts(folder, texts, options=Options(top=1), on_overflow=policy)
    return [(a.answers[0]["text"], a.answers[0]["score"], a.tokens()) for a in found]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_beside_the_columns_in_the_same_format(runs, tmp_path, kind):
    folder = runs("classify")
    source, out = write(tmp_path / f"in.{kind}"), tmp_path / f"out.{kind}"
    before = source.read_bytes()
    totals, said = answer(folder, source, out)
    assert source.read_bytes() == before
    assert (totals.rows, totals.answered, said) == (5, 5, [])
    given, found = read(source), read(out)
    right = expected(folder, [row["text"] for row in given])
    for row, result, (label, score, tokens) in zip(given, found, right, strict=True):
        assert {name: result[name] for name in row} == row
        assert result["prediction"] == label
        assert float(result["prediction_score"]) == pytest.approx(score, rel=1e-5)
        assert int(result["tokens_read"]) == tokens["tokens_read"]
        assert int(result["tokens_total"]) == tokens["tokens_total"]
        assert result["prediction_error"] == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [source.name, out.name, f"{out.name}.predict.json"]
    )
    if kind == "parquet":
        assert pq.read_schema(out).field("id").type == pa.int16()


def test_json_lines_keep_the_text_of_their_objects(runs, tmp_path):
    line = '{"n": 1.00, "big": 12345678901234567890123, "text":"a dog" , "é": "\\u00e9" }'
    (tmp_path / "in.jsonl").write_text(line + "\n")
    answer(runs("classify"), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text().startswith(line[:-1].rstrip() + ', "prediction": ')


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_plain_text_and_standard_input_become_any_table(runs, tmp_path, monkeypatch, suffix):
    folder = runs("classify")
    (tmp_path / "in.txt").write_bytes(b"The old dog\r\n\na cat, jumps\n")
    totals, said = answer(folder, tmp_path / "in.txt", tmp_path / f"a.{suffix}")
    assert (totals.rows, totals.answered, totals.failed) == (3, 2, 1)
    assert said == ["line 2: the input is empty."]
    stdin = io.TextIOWrapper(io.BytesIO((tmp_path / "in.txt").read_bytes()))
    monkeypatch.setattr(sys, "stdin", stdin)
    answer(folder, "-", tmp_path / f"b.{suffix}")
    found = read(tmp_path / f"a.{suffix}")
    assert found == read(tmp_path / f"b.{suffix}")
    assert [row["text"] for row in found] == ["The old dog", "", "a cat, jumps"]
    assert found[1]["prediction_error"] == "the input is empty."


def test_a_folder_of_texts(runs, tmp_path):
    texts = tmp_path / "texts"
    (texts / "b").mkdir(parents=True)
    (texts / "b/2.txt").write_text("The old dog\nruns.")
    (texts / "1.md").write_text("a cat")
    (texts / "3.txt").write_bytes(b"\xff\xfe\x00")
    (texts / "picture.png").write_bytes(b"x")
    totals, said = answer(runs("classify"), texts, tmp_path / "out.csv")
    found = read(tmp_path / "out.csv")
    assert [row["file"] for row in found] == ["1.md", "3.txt", "b/2.txt"]
    assert (totals.answered, totals.failed) == (2, 1)
    assert "picture.png is no text and is left out." in said[0]
    assert "UTF-16" in found[1]["prediction_error"]


def test_every_file_of_a_folder_is_read_or_named(runs, tmp_path):
    texts, linked = tmp_path / "texts", tmp_path / "linked"
    texts.mkdir()
    linked.mkdir()
    (linked / "far.txt").write_text("a cat")
    (texts / "folder").symlink_to(linked)
    (texts / "again").symlink_to(texts)
    (texts / "gone.txt").symlink_to("nowhere.txt")
    os.mkfifo(texts / "pipe.txt")
    totals, said = answer(runs("classify"), texts, tmp_path / "out.csv")
    assert [row["file"] for row in read(tmp_path / "out.csv")] == ["folder/far.txt"]
    assert totals.rows == 1
    assert [line.partition(" ")[0].rpartition("/")[2] for line in said] == ["gone.txt", "pipe.txt"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_name_that_is_not_utf8_is_written_with_escapes(runs, tmp_path, kind):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / os.fsdecode(b"caf\xe9.txt")).write_text("a cat")
    (texts / os.fsdecode(b"not text \xe9.txt")).write_bytes(b"\x00")
    totals, _ = answer(runs("classify"), texts, tmp_path / f"out.{kind}")
    assert (totals.answered, totals.failed) == (1, 1)
    found = read(tmp_path / f"out.{kind}")
    assert found[0]["file"].replace("\\\\", "\\") == "caf\\udce9.txt"
    again, said = answer(runs("classify"), texts, tmp_path / f"out.{kind}")
    assert again == totals
    assert "is finished" in said[0]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_with_carriage_returns_in_its_fields_can_be_read_again(runs, tmp_path, end):
    rows = ["id,text", '1,"a cat\rruns"', '2,"a\r\ndog"', ""]
    (tmp_path / "in.csv").write_bytes(end.join(rows).encode())
    totals, _ = answer(runs("classify"), tmp_path / "in.csv", tmp_path / "out.csv")
    assert totals.answered == 2
    with (tmp_path / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file, strict=True))
    assert [row["text"] for row in found] == ["a cat\rruns", "a\r\ndog"]
    assert (tmp_path / "out.csv").read_bytes().endswith(end.encode())


def test_the_remedy_of_a_bad_row_of_tsv_speaks_of_tabs(runs, tmp_path):
    (tmp_path / "in.tsv").write_text("id\ttext\n1\ta\tcat\n")
    _, said = answer(runs("classify"), tmp_path / "in.tsv", tmp_path / "out.tsv")
    assert "it must have 2 fields, as the header has: got 3." in said[0]
    assert "tab" in said[0]
    assert "quote" not in said[0]
    assert said[0].count("line 2") == 1


def test_a_row_of_csv_with_other_fields_than_the_header_is_told_their_numbers(runs, tmp_path):
    (tmp_path / "in.csv").write_text("id,text\n1,a cat\n2,a cat, a dog\n3\n")
    _, said = answer(runs("classify"), tmp_path / "in.csv", tmp_path / "out.csv")
    assert [line.partition(". ")[0] for line in said] == [
        "line 3: it must have 2 fields, as the header has: got 3",
        "line 4: it must have 2 fields, as the header has: got 1",
    ]
    assert all("quote a field that holds a comma" in line for line in said)


@pytest.mark.parametrize(
    ("name", "bad", "problem"),
    [
        ("in.txt", b"\xff", "it is not UTF-8: it holds the byte 0xff."),
        ("in.txt", b"\0", "it is not text: it holds a NUL byte"),
        ("in.txt", b"x" * 1_000_001, "it is longer than data.max_document_mb = 1 MB."),
        ("in.jsonl", b"\xff", "it is not UTF-8: it holds the byte 0xff."),
        ("in.jsonl", b"{x", "it is not valid JSON: Expecting property name enclosed in"),
        ("in.jsonl", b"1", "it is not a JSON object, but int."),
        ("in.jsonl", b"[" * 100_000, "it is not valid JSON: nested too deeply."),
        ("in.csv", b'"x', "it is not valid CSV: "),
        ("in.csv", b"\xff", "it is not UTF-8: it holds the byte 0xff."),
    ],
)
def test_the_problem_of_a_line_names_the_line_once(runs, tmp_path, name, bad, problem):
    good = b'{"text": "a cat"}' if name == "in.jsonl" else b"a cat"
    first = b"text" if name == "in.csv" else good
    (tmp_path / name).write_bytes(b"\n".join([first, good, bad, good, b""]))
    config = runs("classify").config()
    data = config.data.model_copy(update={"max_document_mb": 1})
    config = config.model_copy(update={"data": data})
    out, said = tmp_path / ("out.jsonl" if name == "in.jsonl" else "out.csv"), []
    predictor = Predictor(runs("classify"), options=Options(top=1), on_overflow="chunk")
    predict_file(predictor, config, str(tmp_path / name), out, say=said.append)
    assert len(said) == 1
    assert said[0].startswith(f"line 3: {problem}")
    assert said[0].count("line ") == 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_an_empty_line_of_tsv_with_one_column_is_an_empty_text(runs, tmp_path, end):
    (tmp_path / "in.tsv").write_bytes(end.join(["text", "a dog", "", "a cat", ""]).encode())
    totals, said = answer(runs("classify"), tmp_path / "in.tsv", tmp_path / "out.tsv")
    assert (totals.rows, totals.answered, totals.failed) == (3, 2, 1)
    assert said == ["line 3: the input is empty."]
    assert [row["text"] for row in read(tmp_path / "out.tsv")] == ["a dog", "", "a cat"]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_blank_line_between_rows_of_several_columns_is_no_row(runs, tmp_path, kind):
    comma = "," if kind == "csv" else "\t"
    rows = ["id,text", "1,a dog", "", "2,a cat"]
    (tmp_path / f"in.{kind}").write_text("\n".join(rows).replace(",", comma))
    totals, said = answer(runs("classify"), tmp_path / f"in.{kind}", tmp_path / f"out.{kind}")
    assert (totals.rows, totals.answered, said) == (2, 2, [])


def test_bad_rows_of_csv_are_reported_with_their_numbers_and_the_others_are_answered(
    runs, tmp_path
):
    (tmp_path / "in.csv").write_bytes(
        b"text,id\r\n"
        b"good dog,1\r\n"
        b"too,many,fields\r\n"
        b'"a quote that is not closed,3\r\n'
        b'"good, cat",4\r\n'
        b"\xff,5\r\n"
        b'"two\r\nlines",6\r\n'
        b",7\r\n"
        b'"open at the end,8\r\n'
        b"bird,9\r\n"
    )
    totals, said = answer(runs("classify"), tmp_path / "in.csv", tmp_path / "out.csv")
    found = read(tmp_path / "out.csv")
    assert [row["id"] for row in found] == ["1", "4", "6", "7", "9"]
    assert (totals.rows, totals.answered, totals.failed, totals.left_out) == (9, 4, 1, 4)
    assert [text.partition(":")[0] for text in said] == [
        "line 3", "line 4", "line 6", "line 9", "line 10",
    ]  # fmt: skip
    assert b"\r\n" in (tmp_path / "out.csv").read_bytes()


@pytest.mark.parametrize(
    ("last", "answered"),
    [("", 0), ('\xff"', 0), ('"x', 0), ('"', 1)],  # the last two records would be one of 3 columns
)
def test_quotes_that_are_not_closed_are_read_in_linear_time(tmp_path, monkeypatch, last, answered):
    """Each line leaves a quote open, whether it is read within quotes or not."""
    count, decoded = 12_000, []
    lines = ["id,text,note", *['x","abc'] * count, last]
    (tmp_path / "in.csv").write_bytes("\n".join(lines).encode("latin-1"))
    source = Input(str(tmp_path / "in.csv"), "text", "csv", 1, lambda value: value)
    original = files.decode_line
    monkeypatch.setattr(
        files, "decode_line", lambda *a, **b: decoded.append(a[0]) or original(*a, **b)
    )
    rows = list(source.open())
    assert len(decoded) < 6 * count
    assert sum(row.problem is None for row in rows) == answered
    places = [f"line {number}" for number in range(2, len(lines) + 1 - answered)]
    assert [row.place for row in rows][: count - 1] == places[: count - 1]
    if answered:
        assert "as the header has: got 12001. Add" in rows[0].problem
        assert rows[-1].raw == ['x"', "abc\nx", "abc\n"]


def test_bad_rows_of_json_lines_are_reported(runs, tmp_path):
    rows = [
        '{"text": "good dog"}', "{not json", "[1]", '{"other": "x"}', '{"text": null}',
        '{"text": "x", "prediction": 1}', '{"text": "\\ud800"}', "", '{"text": "a cat"}',
    ]  # fmt: skip
    (tmp_path / "in.jsonl").write_text("\n".join(rows) + "\n")
    totals, said = answer(runs("classify"), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (totals.answered, totals.failed, totals.left_out) == (2, 3, 3)
    assert [text.partition(":")[0] for text in said] == [f"line {n}" for n in range(2, 8)]
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 5
    assert "must hold text: got null" in said[3]


def test_a_json_object_without_the_key_of_the_text_is_written_with_its_problem(runs, tmp_path):
    rows = ['{"id": 1}', "{ }", '{"id": 3, "text": "a cat"}']
    (tmp_path / "in.jsonl").write_text("\n".join(rows) + "\n")
    totals, _ = answer(runs("classify"), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (totals.rows, totals.answered, totals.failed, totals.left_out) == (3, 1, 2, 0)
    found = read(tmp_path / "out.jsonl")
    assert [row.get("id") for row in found] == ["1", None, "3"]
    assert [row["prediction_error"] for row in found] == [
        "it has no key 'text': it has 'id'. Name one with --column.",
        "it has no key 'text': it has none. Name one with --column.",
        "",
    ]  # fmt: skip


def test_json_lines_of_which_none_has_the_key_are_refused_at_once(runs, tmp_path):
    (tmp_path / "in.jsonl").write_text('not json\n{"id": 1, "body": "a cat"}\n{"id": 2}\n')
    with pytest.raises(ValueError, match=r"has the key 'text': the first has 'id', 'body'. Name"):
        answer(runs("classify"), tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    answer(runs("classify"), tmp_path / "in.jsonl", tmp_path / "out.jsonl", column="body")
    assert len(read(tmp_path / "out.jsonl")) == 2


@pytest.mark.parametrize("given", ["in.json", "in.jsonl", "-"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_refused_in_one_line(runs, tmp_path, monkeypatch, given, indent):
    content = "\n" + json.dumps([{"text": "a dog"}, {"text": "a cat"}], indent=indent)
    out = tmp_path / "out.jsonl"
    give(monkeypatch, content.encode())
    if given != "-":
        (tmp_path / given).write_text(content)
    source = given if given == "-" else tmp_path / given
    with pytest.raises(ValueError, match=r"one JSON object a line: got an array, for line 2 begin"):
        answer(runs("classify"), source, out, format="jsonl")
    assert not out.with_name("out.jsonl.predict.json").exists()


def test_bad_rows_of_parquet_are_written_with_their_problem(runs, tmp_path):
    pq.write_table(pa.table({"text": ["a dog", None, ""]}), tmp_path / "in.parquet")
    totals, said = answer(runs("classify"), tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert (totals.answered, totals.failed) == (1, 2)
    assert [text.partition(":")[0] for text in said] == ["row 2", "row 3"]
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert found[1]["prediction"] is None
    assert "must hold text: got null" in found[1]["prediction_error"]


class Killed(BaseException):
    """In the place of SIGKILL."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", ["before the journal", "after the journal", "in the finish"])
def test_a_killed_job_goes_on_without_losing_or_doubling_a_row(
    runs, tmp_path, monkeypatch, kind, at
):
    folder = runs("classify")
    texts = [f"dog {number} " * (1 + number % 7) for number in range(40)]
    source = write(tmp_path / f"in.{kind}", texts)
    answer(folder, source, tmp_path / f"whole.{kind}", tokens_per_batch=8)
    out = tmp_path / f"out.{kind}"
    save = Journal.save

    def killed(journal, *, finished=False):
        if at == "in the finish" and not finished:
            return save(journal)
        if at != "before the journal":
            save(journal, finished=finished)
        raise Killed

    kills = 0
    for _ in range(100):
        monkeypatch.setattr(Journal, "save", save if kills % 2 else killed)
        if kills % 2:  # every second start gets two pools further
            left = [2]

            def stops(journal, *, finished=False, left=left):
                save(journal, finished=finished)
                left[0] -= 1
                if left[0] <= 0 and not finished:
                    raise Killed

            monkeypatch.setattr(Journal, "save", stops)
        try:
            answer(folder, source, out, tokens_per_batch=8)
            break
        except Killed:
            kills += 1
            assert not out.exists()
    assert kills >= (1 if at == "in the finish" else 4)
    assert read(out) == read(tmp_path / f"whole.{kind}")
    assert len(read(out)) == 40
    assert not out.with_name(f"{out.name}.partial").exists()
    totals, said = answer(folder, source, out, tokens_per_batch=8)
    assert said == [f"{out} is finished: it is as it was."]
    assert totals.rows == 40


@pytest.mark.parametrize("kind", [*KINDS, "npy"])
def test_answers_so_far_that_are_cut_are_not_continued(runs, tmp_path, monkeypatch, kind):
    """Their end would be filled with zeros, and the job would call itself complete."""
    folder = runs("embed" if kind == "npy" else "classify")
    source = write(tmp_path / f"in.{'csv' if kind == 'npy' else kind}", ["a cat"] * 40)
    out, save = tmp_path / f"out.{kind}", Journal.save

    def killed(journal, *, finished=False):
        save(journal)
        if journal.totals.rows:
            raise Killed

    monkeypatch.setattr(Journal, "save", killed)
    monkeypatch.setattr(file_job, "ROWS", 10)
    with pytest.raises(Killed):
        answer(folder, source, out)
    monkeypatch.setattr(Journal, "save", save)
    partial = tmp_path / f"out.{kind}.partial"
    cut = {"parquet": "part-00000000.parquet", "npy": "vectors.f32"}.get(kind)
    path = partial / cut if cut else partial
    if kind == "parquet":
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size // 2)
    before = {p: p.read_bytes() for p in partial.parent.rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match="holds fewer answers than"):
        answer(folder, source, out)
    assert {p: p.read_bytes() for p in partial.parent.rglob("*") if p.is_file()} == before


def test_the_first_line_comes_at_once_and_the_first_answers_are_safe_early(runs, tmp_path):
    source, told = write(tmp_path / "in.csv", ["a cat runs"] * 400), []
    journal = tmp_path / "out.csv.predict.json"

    def tell(progress):
        told.append((progress.rows, json.loads(journal.read_text())["totals"]["rows"]))

    answer(runs("classify"), source, tmp_path / "out.csv", tell=tell)
    assert told[0] == (0, 0)
    assert 0 < told[1][0] == told[1][1] < 40  # a batch of 64 tokens, where later pools have 16
    assert told[2][0] - told[1][0] > 8 * told[1][0]


def test_what_is_drawn_does_not_depend_on_where_a_job_was_killed(runs, tmp_path, monkeypatch):
    folder = runs("clm")
    source = write(tmp_path / "in.csv", [f"The dog {number}" for number in range(12)])
    drawn = {"options": Options(temperature=2.0, seed=3, max_new_tokens=4), "tokens_per_batch": 2}
    monkeypatch.setattr(file_job, "POOL", 4)
    answer(folder, source, tmp_path / "whole.csv", on_overflow=None, **drawn)
    save, left = Journal.save, [4]

    def killed(journal, *, finished=False):
        save(journal, finished=finished)
        left[0] -= 1
        if not left[0]:
            raise Killed

    monkeypatch.setattr(Journal, "save", killed)
    with pytest.raises(Killed):
        answer(folder, source, tmp_path / "out.csv", on_overflow=None, **drawn)
    answer(folder, source, tmp_path / "out.csv", on_overflow=None, **drawn)
    assert read(tmp_path / "out.csv") == read(tmp_path / "whole.csv")


@pytest.mark.slow
def test_a_job_that_gets_sigkill_is_resumed_by_the_same_command(runs, tmp_path):
    folder = runs("classify")
    source = write(tmp_path / "in.csv", [f"dog {n} " * (1 + n % 40) for n in range(30_000)])
    out = tmp_path / "out.csv"
    line = [sys.executable, "-m", "linformer_kit.cli", "predict", str(folder.path)]
    line += ["--file", str(source), "--out", str(out), "--tokens-per-batch", "512"]
    partial = tmp_path / "out.csv.partial"
    for _ in range(3):
        process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        size = partial.stat().st_size if partial.exists() else 0
        while process.poll() is None and (not partial.exists() or partial.stat().st_size <= size):
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert not out.exists()
    assert subprocess.run(line, stderr=subprocess.DEVNULL, check=False).returncode == 0
    assert [row["id"] for row in read(out)] == [str(number) for number in range(30_000)]


@pytest.mark.parametrize("kind", [*KINDS, "npy"])
def test_answers_that_were_changed_after_the_end_are_not_called_unchanged(
    capsys, runs, tmp_path, kind
):
    source = write(tmp_path / f"in.{'csv' if kind == 'npy' else kind}")
    folder, out = runs("embed" if kind == "npy" else "classify"), tmp_path / f"out.{kind}"
    line = ["predict", str(folder.path), "--file", str(source), "--out", str(out)]
    assert command(capsys, *line)[0] == 0
    whole = out.read_bytes()
    os.utime(out, (1, 1))  # as a copy of it
    code, _, err = command(capsys, *line)
    assert code == 0
    assert "is finished: it is as it was" in err
    for content, found in (
        (b"mine", "got 4 bytes"),
        (whole[:-1] + b"#", "got other content of the same size"),
    ):
        out.write_bytes(content)
        code, _, err = command(capsys, *line)
        assert code == 2
        assert f"must be as the finished job wrote it, with {len(whole):,} bytes: {found}." in err
        assert out.read_bytes() == content


def test_the_lines_about_a_matrix_are_checked_with_it(runs, tmp_path):
    source, out = write(tmp_path / "in.csv"), tmp_path / "out.npy"
    answer(runs("embed"), source, out)
    out.with_name("out.npy.rows.jsonl").unlink()
    with pytest.raises(ValueError, match=r"rows.jsonl must be as the finished .* got no file"):
        answer(runs("embed"), source, out)


def test_a_finished_journal_of_an_earlier_version_is_accepted(runs, tmp_path):
    source, out = write(tmp_path / "in.csv"), tmp_path / "out.csv"
    answer(runs("classify"), source, out)
    path = out.with_name("out.csv.predict.json")
    journal = json.loads(path.read_text())
    del journal["written"], journal["digest_of"]
    path.write_text(json.dumps(journal))
    out.write_text("mine")
    _, said = answer(runs("classify"), source, out)
    assert said == [f"{out} is finished: it is as it was."]


def give(monkeypatch, content):
    """Put `content` on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (b"a dog\na bird\n", "other rows"),
        (b"a dog\n", "1 row"),
        (b"", "0 rows"),
        (b"a dog\na cat\na bird\n", "more than 2 rows"),
    ],
)
def test_another_standard_input_for_a_finished_job_is_refused(
    capsys, runs, tmp_path, monkeypatch, second, found
):
    out = tmp_path / "out.jsonl"
    line = ["predict", str(runs("classify").path), "--file", "-", "--out", str(out)]
    give(monkeypatch, b"a dog\na cat\n")
    assert command(capsys, *line)[0] == 0
    before = out.read_bytes()
    give(monkeypatch, second)
    code, _, err = command(capsys, *line)
    assert code == 2
    assert f"holds the answers to another standard input, of 2 rows: got {found}. Name" in err
    give(monkeypatch, b"a dog\na cat\n")
    code, _, err = command(capsys, *line)
    assert code == 0
    assert "is finished: it is as it was" in err
    assert out.read_bytes() == before


def killed_after(monkeypatch, rows):
    """Let every job end at its first entry after so many rows."""
    save = Journal.save

    def killed(journal, *, finished=False):
        save(journal, finished=finished)
        if journal.totals.rows >= rows:
            raise Killed

    monkeypatch.setattr(file_job, "ROWS", rows)
    monkeypatch.setattr(Journal, "save", killed)
    return lambda: monkeypatch.setattr(Journal, "save", save)


@pytest.mark.parametrize(
    ("old", "new"), [(b"\n2,", b"\n7,"), (b"id,text", b"no,text")], ids=["id", "header"]
)
def test_standard_input_with_other_columns_beside_the_same_texts_is_not_continued(
    runs, tmp_path, monkeypatch, old, new
):
    folder, out = runs("classify"), tmp_path / "out.csv"
    content = b"id,text\n1,a dog\n2,a cat\n3,a bird\n4,a hill\n"
    restore = killed_after(monkeypatch, 2)
    give(monkeypatch, content)
    with pytest.raises(Killed):
        answer(folder, "-", out, format="csv")
    restore()
    give(monkeypatch, content.replace(old, new))
    with pytest.raises(ValueError, match="first 2 rows of standard input are not those"):
        answer(folder, "-", out, format="csv")
    give(monkeypatch, content)
    answer(folder, "-", out, format="csv")
    assert [row["id"] for row in read(out)] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("bad", [b"", b"not,a,row\n"], ids=["good rows", "a bad row"])
def test_a_job_begun_by_an_earlier_version_resumes_or_is_refused_in_one_line(
    runs, tmp_path, monkeypatch, bad
):
    folder, out = runs("classify"), tmp_path / "out.csv"
    content = b"id,text\n" + bad + b"1,a dog\n2,a cat\n3,a bird\n"
    restore = killed_after(monkeypatch, 2)
    give(monkeypatch, content)
    with pytest.raises(Killed):
        answer(folder, "-", out, format="csv")
    restore()
    path = out.with_name("out.csv.predict.json")
    journal = json.loads(path.read_text())
    del journal["digest_of"]
    seen = hashlib.blake2b(digest_size=16)
    rows = [("line 2", "a dog", None), ("line 3", "a cat", None)]
    for row in [("line 2", None, "in the words of that version"), rows[1]] if bad else rows:
        seen.update(repr(row).encode())
    journal["read"] = seen.hexdigest()
    path.write_text(json.dumps(journal))
    give(monkeypatch, content)
    if bad:
        with pytest.raises(ValueError, match=r"or an earlier version .* Name another file"):
            answer(folder, "-", out, format="csv")
        return
    answer(folder, "-", out, format="csv")
    assert [row["id"] for row in read(out)] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("in.csv", "--out must not be the input"),
        ("link.csv", "is not a regular file"),
        ("hard.csv", "--out must not be the input"),
        ("other.csv", "exists and was not written by this command"),
        ("out.jsonl", "in the same format"),
        ("out.csv.gz", "is written uncompressed"),
        ("out.txt", "must end in .csv"),
        ("out.conll", "must end in .csv"),
        ("nowhere/out.csv", "there is no folder"),
    ],
)
def test_an_output_that_is_something_else_is_refused(capsys, runs, tmp_path, name, message):
    source = write(tmp_path / "in.csv")
    (tmp_path / "other.csv").write_text("years of work")
    (tmp_path / "link.csv").symlink_to(tmp_path / "elsewhere.csv")
    os.link(source, tmp_path / "hard.csv")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    run = str(runs("classify").path)
    capsys.readouterr()
    code, out, err = command(
        capsys, "predict", run, "--file", str(source), "--out", str(tmp_path / name)
    )
    assert (code, out) == (2, "")
    assert message in err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_an_output_inside_the_folder_of_texts_is_refused(capsys, runs, tmp_path):
    (tmp_path / "a.txt").write_text("dog")
    arguments = ["--file", str(tmp_path), "--out", str(tmp_path / "out.csv")]
    code, _, err = command(capsys, "predict", str(runs("classify").path), *arguments)
    assert code == 2
    assert "--out must not be in what is read" in err


def test_the_answers_of_another_job_are_left_alone(runs, tmp_path):
    source = write(tmp_path / "in.csv")
    answer(runs("classify"), source, tmp_path / "out.csv")
    before = (tmp_path / "out.csv").read_bytes()
    with pytest.raises(ValueError, match=r"another job: on_overflow is 'chunk' .* there"):
        answer(runs("classify"), source, tmp_path / "out.csv", on_overflow="truncate")
    write(source, ["changed"])
    with pytest.raises(ValueError, match="another job: input is"):
        answer(runs("classify"), source, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "in.csv", "--column", "body"], "has no column 'body': it has 'id', 'text'"),
        (["--file", "in.csv", "--column", ""], "has no column '': it has 'id', 'text'"),
        (["--file", "in.txt", "--column", "x"], "--column has no effect on in.txt"),
        (["--file", "none.csv"], "there is no file none.csv"),
        (["--file", "taken.csv"], "has a column 'prediction', which answers are written to"),
        (["--file", "empty.csv"], "is empty: it has no header"),
        (["--file", "in.csv", "--format", "xml"], "--format must be one of"),
        (["--file", "in.csv", "--format", "conll"], "--format must be one of"),
        (["--file", "in.conll"], "in.conll has CoNLL columns"),
        (["text"], "--out is for --file or standard input"),
    ],
)
def test_a_mistake_is_one_line(capsys, runs, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.csv")
    (tmp_path / "in.txt").write_text("dog\n")
    (tmp_path / "in.conll").write_text("dog O\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "taken.csv").write_text("text,prediction\na,b\n")
    run = str(runs("classify").path)
    capsys.readouterr()
    code, _, err = command(capsys, "predict", run, *arguments, "--out", "out.csv")
    assert code == 2
    assert message in err
    assert not (tmp_path / "out.csv").exists()


def test_a_line_of_standard_input_that_is_not_utf8_is_reported(capsys, runs, monkeypatch):
    run = str(runs("classify").path)
    given = io.BytesIO(b"a c\xe9t\nThe old dog runs.\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given, encoding="utf-8", errors="strict"))
    capsys.readouterr()
    code, out, err = command(capsys, "predict", run)
    assert code == 2
    assert "input 1: a text must be valid Unicode" in err
    assert "1 of 2 inputs was not answered" in err
    assert json.loads(out.splitlines()[1])["answers"]


@pytest.mark.parametrize("more", [[], ["--out", "out.csv"]])
def test_standard_input_that_is_closed_is_empty(capsys, runs, tmp_path, monkeypatch, more):
    run = str(runs("classify").path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)
    capsys.readouterr()
    _, _, err = command(capsys, "predict", run, *more)
    assert "0 of 0" in err


def test_options_of_files_need_an_output(capsys, runs, tmp_path):
    write(tmp_path / "in.csv")
    run = str(runs("classify").path)
    for arguments, message in (
        (["x", "--column", "text"], "--column has no effect without --out"),
        (["--file", str(tmp_path / "in.csv")], "Name the file for its answers with --out"),
        (["--file", str(tmp_path)], "is a folder: name the file for its answers"),
    ):
        code, _, err = command(capsys, "predict", run, *arguments)
        assert code == 2
        assert message in err


def test_the_command_says_what_was_not_read_and_its_exit_code_is_that_of_bad_rows(
    capsys, runs, tmp_path
):
    write(tmp_path / "in.csv")
    run = str(runs("classify").path)
    arguments = ["predict", run, "--file", str(tmp_path / "in.csv"), "--on-overflow"]
    capsys.readouterr()
    code, out, err = command(capsys, *arguments, "truncate", "--out", str(tmp_path / "a.csv"))
    assert (code, out) == (0, "")
    assert "5 of 5 rows answered." in err
    assert "1 text longer than the model reads (on_overflow: truncate)." in err
    assert "of the tokens (120 of" in err
    code, _, err = command(capsys, *arguments, "error", "--out", str(tmp_path / "b.csv"))
    assert code == 2
    assert "line 4: a text must have at most data.max_length = 32 tokens: got 152" in err
    assert "4 of 5 rows answered; 1 written without an answer" in err


@pytest.mark.parametrize("task", ["mlm", "clm", "translate"])
def test_every_task_answers_a_file(runs, tmp_path, task):
    name = "source" if task == "translate" else "text"
    text = "The <mask> dog" if task == "mlm" else "The old dog"
    (tmp_path / "in.csv").write_text(f"{name}\n{text}\n{text} and\n")
    options = Options(max_new_tokens=3) if task != "mlm" else Options(top=2)
    totals, _ = answer(
        runs(task), tmp_path / "in.csv", tmp_path / "out.csv", on_overflow=None, options=options
    )
    assert totals.answered == 2
    found = read(tmp_path / "out.csv")
    for row, one in zip(
        found, predict_texts(runs(task), [text, f"{text} and"], options=options), strict=True
    ):
        best = one.answers[0]
        assert row["prediction"] == (best["token"] if task == "mlm" else best["text"])
        if task == "mlm":
            assert [each["token"] for each in json.loads(row["predictions"])] == [
                each["token"] for each in one.answers
            ]


def test_batches_are_of_similar_length_and_within_the_budget(runs):
    predictor = Predictor(runs("classify"), options=Options(), tokens_per_batch=64)
    questions = [predictor.question("d" * (1 + 7 * number % 30)) for number in range(50)]
    seen, padded, tokens = [], 0, 0
    for batch in predictor._batches(questions):
        lengths = [len(questions[number].pieces[piece]) for number, piece in batch]
        assert len(lengths) * max(lengths) <= 64
        padded += len(lengths) * max(lengths)
        tokens += sum(lengths)
        seen += batch
    assert sorted(seen) == [(number, 0) for number in range(50)]
    assert padded / tokens < 1.1


def test_the_time_left_follows_from_the_part_that_is_done():
    half = Progress(rows=30, tokens=5000, seconds=60.0, done=75, total=100, begun=50)
    assert half.left == 60.0
    assert half.line() == "predict: 75 %, 30 rows, 83 tokens/s, about 60 s left"
    assert Progress(3, 10, 1.0, 5, 0).line() == "predict: 3 rows, 10 tokens/s"


def test_two_processes_do_not_write_one_output(runs, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.csv"), tmp_path / "out.csv"
    opened = LineWriter.open_at

    def second(writer, position):
        opened(writer, position)
        monkeypatch.setattr(LineWriter, "open_at", opened)
        with pytest.raises(ValueError, match=r"out\.csv is in use by another process"):
            answer(runs("classify"), source, out)

    monkeypatch.setattr(LineWriter, "open_at", second)
    answer(runs("classify"), source, out)
    assert len(read(out)) == 5
