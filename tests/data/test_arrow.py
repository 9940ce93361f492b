"""Rows on disk: what is read is what was written, whatever the size of the batches."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from linformer_kit.data import arrow
from linformer_kit.data.arrow import RowFile

ROWS = [
    {
        "input_ids": np.arange(length),
        "labels": length % 3,
        "length": length,
        "word_starts": np.arange(length) % 2 == 0,
        "reference": "ü" * length,
    }
    for length in (1, 7, 30, 2, 300, 5)
]


def read(path):
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
        return list(stream)


@pytest.mark.parametrize(("values", "batches"), [(1 << 22, 1), (20, 3), (1, 6)])
def test_long_rows_make_small_batches(tmp_path, monkeypatch, values, batches):
    monkeypatch.setattr(arrow, "VALUES", values)
    with RowFile(tmp_path / "a.arrow", 70_000) as file:
        file.add(iter(ROWS))
    found = read(tmp_path / "a.arrow")
    assert len(found) == batches
    rows = [row for batch in found for row in batch.to_pylist()]
    assert rows == [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()}
        for row in ROWS
    ]


def test_without_rows_there_is_no_file(tmp_path):
    with RowFile(tmp_path / "a.arrow", 10) as file:
        file.add([])
    assert not (tmp_path / "a.arrow").exists()


def test_an_error_on_the_way_is_passed_on(tmp_path):
    def rows():
        yield from ROWS
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"), RowFile(tmp_path / "a.arrow", 10) as file:
        file.add(rows())
