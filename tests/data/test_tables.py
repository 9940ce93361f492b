"""Records carry their places; what a table says is read as it stands or refused."""

from __future__ import annotations

import csv
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import linformer_kit
from linformer_kit.data import decompress, tables
from linformer_kit.data.files import Limits, format_of
from linformer_kit.errors import UserError


def read(path, columns=("text",), documents="line", **limits):
    return list(
        tables.read(path, columns, format="auto", documents=documents, limits=Limits(**limits))
    )


@pytest.mark.parametrize(
    ("documents", "places"),
    [("line", ["line 1", "line 2", "line 3", "line 4"]), ("blank-line", ["line 1", "line 4"])],
)
def test_documents_are_placed_at_their_first_line(tmp_path, documents, places):
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n\nc\n")
    assert [place for place, _ in read(path, documents=documents)] == [
        f"{place} of {path}" for place in places
    ]


def test_records_of_many_lines_are_placed_at_their_first(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,n\n"one\ntwo",1\n\nthree,2\n')
    assert read(path) == [
        (f"line 2 of {path}", {"text": "one\ntwo"}),
        (f"line 5 of {path}", {"text": "three"}),
    ]


def test_a_field_longer_than_the_csv_module_allows_is_read(tmp_path):
    before = csv.field_size_limit()
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "x" * 500_000 + "\n")
    assert len(read(path)[0][1]["text"]) == 500_000
    assert csv.field_size_limit() >= before


def test_a_document_of_many_short_lines_takes_little_memory(tmp_path):
    """A list of lines would take sixty bytes for each of ten."""
    path = tmp_path / "a.txt"
    path.write_text("ten bytes\n" * 110_000)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"begins at line 1 of .* longer than"):
            read(path, documents="blank-line", document_mb=1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000


def test_parquet_of_one_repeated_text_takes_little_memory(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    text = pa.array(["x" * 900_000])
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, type=pa.int32()), text)
    pq.write_table(pa.table({"text": same}), path)
    monkeypatch.setattr(decompress, "FLOOR", 20_000_000)
    before = pa.total_allocated_bytes()
    rows = tables.read(path, ["text"], format="auto", documents="line", limits=Limits())
    next(rows)
    assert pa.total_allocated_bytes() - before < 20_000_000  # 2,000 of them are 1.8 GB
    with pytest.raises(UserError, match="expands to more than 250 times"):
        list(rows)


def test_parquet_gives_lists_and_numbers_as_they_are(tmp_path):
    path = tmp_path / "a.parquet"
    table = {
        "signal": [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]],
        "label": [3, 4],
        "text": ["a", "b"],
    }
    pq.write_table(pa.table(table), path)
    rows = [row for _, row in read(path, ["signal", "label", "text"])]
    assert rows == [{name: table[name][at] for name in table} for at in range(2)]


def test_parquet_inside_another_compression_is_told(tmp_path):
    (tmp_path / "a.parquet.gz").write_bytes(b"x")
    with pytest.raises(UserError, match="Decompress it first"):
        read(tmp_path / "a.parquet.gz")


def test_one_parser_of_csv_serves_training_and_prediction():
    source = Path(linformer_kit.__file__).parent
    parsers = {"csv.reader(", "csv.DictReader(", "read_csv(", "csv.Sniffer("}
    found = [
        path.relative_to(source).as_posix()
        for path in sorted(source.rglob("*.py"))
        for line in path.read_text().splitlines()
        if any(parser in line for parser in parsers)
    ]
    assert found == ["data/tables.py"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", b"dog\n\xff\ncat\n"),
        ("a.csv", b'n,text\n1,"a\n""dog"""\n\n2\n3,"open\n4,cat\n'),
        ("a.tsv", b'text\n"dog\n\na\tb\ncat\n'),
        ("a.jsonl", b'{"text": "dog"}\n\n[1]\n{"n": 2}\n{"text": "cat"}\n'),
    ],
)
def test_training_raises_the_first_problem_that_prediction_passes_over(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    given = tables.Table(str(path), format_of(path), ["text"], Limits(), tables.COLUMN_KEYS)
    every = list(given.open())
    good = [row.values["text"] for row in every if row.problem is None]
    assert good[-1] == "cat"
    first = next(row for row in every if row.problem is not None)
    records = tables.read(path, ["text"], format="auto", documents="line", limits=Limits())
    for row in every[: every.index(first)]:
        assert next(records) == (f"{row.place} of {path}", row.values)
    with pytest.raises(UserError) as caught:
        next(records)
    assert str(caught.value) == f"{first.place} of {path} {first.problem}"
