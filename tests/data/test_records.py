"""Records carry their places; what a table says is read as it stands or refused."""

from __future__ import annotations

import csv
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from linformer_kit.data import decompress, records
from linformer_kit.data.files import Limits
from linformer_kit.errors import UserError


def read(path, columns=("text",), documents="line", **limits):
    return list(
        records.read(path, columns, format="auto", documents=documents, limits=Limits(**limits))
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
    rows = records.read(path, ["text"], format="auto", documents="line", limits=Limits())
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
