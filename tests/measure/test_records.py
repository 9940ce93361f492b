"""Records: what is written is read, and what is damaged is left out and reported."""

from __future__ import annotations

import os

import pytest

from linformer_kit.errors import UserError
from linformer_kit.measure.records import RecordFile, read_records


def test_records_come_back_as_written(tmp_path):
    path = tmp_path / "new" / "folder" / "records.jsonl"
    first, second = {"seconds": [0.1, 2e-9], "note": None, "machine": {}}, {"name": "Größe"}
    with RecordFile(path) as file:
        file.append(first)
    with RecordFile(path) as file:
        file.append(second)
        assert file.written == 1
    assert read_records(path) == ([first, second], [])


def test_every_record_is_on_disk_at_once(tmp_path):
    path = tmp_path / "records.jsonl"
    with RecordFile(path) as file:
        file.append({"a": 1})
        assert read_records(path).records == [{"a": 1}]


def test_a_record_counts_even_if_ctrl_c_comes_just_after_it(tmp_path, monkeypatch):
    with RecordFile(tmp_path / "records.jsonl") as file:
        file.append({"a": 1})
        flush = file._file.flush

        def flush_and_stop():
            flush()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(file._file, "flush", flush_and_stop)
            with pytest.raises(KeyboardInterrupt):
                file.append({"a": 2})
        assert file.written == 2


@pytest.mark.parametrize("damage", [b'{"a": ', b"\xff\xfe{}", b"[1, 2]"])
def test_a_damaged_line_is_left_out_and_reported(tmp_path, damage):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"a": 1}\n' + damage + b'\n\n{"a": 2}\n')
    records, problems = read_records(path)
    assert records == [{"a": 1}, {"a": 2}]
    assert len(problems) == 1
    assert "line 2" in problems[0]


def test_a_torn_last_line_does_not_spoil_the_next_record(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"a": 1, "machine": {}}\n{"a": ')
    with RecordFile(path) as file:
        file.append({"a": 3})
    records, problems = read_records(path)
    assert records == [{"a": 1, "machine": {}}, {"a": 3}]
    assert len(problems) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"Chapter 1\n",
        b'{"text": "a", "label": "b"}\n{"text": "c", "label": "d"}\n',
        b"\x00\xff\x00",
        b"[1, 2]\n",
        b'{"machine": 3}',
        b"{" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_nothing_is_added_to_a_file_of_something_else(tmp_path, content):
    path = tmp_path / "thesis.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match="holds something else than records"):
        RecordFile(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b'{"bench": "grid", "cel', b'x\n{"machine": {}}\n', b'{"kind": "heads", '],
)
def test_an_empty_file_and_one_that_a_crash_has_torn_are_added_to(tmp_path, content):
    path = tmp_path / "records.jsonl"
    path.write_bytes(content)
    with RecordFile(path) as file:
        file.append({"a": 1})
    assert read_records(path).records[-1] == {"a": 1}


def test_what_is_not_a_regular_file_is_refused(tmp_path):
    """A pipe that nobody reads must not be waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for name, message in (("pipe", "not a regular file"), ("dangling", "does not exist")):
        with pytest.raises(UserError, match=message):
            RecordFile(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        RecordFile(tmp_path)
    assert not (tmp_path / "none").exists()


def test_a_line_nested_too_deeply_is_reported(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"a":' * 100_000 + b'\n{"a": 1}\n')
    records, problems = read_records(path)
    assert records == [{"a": 1}]
    assert "line 1: not JSON (nested too deeply)" in problems[0]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        RecordFile(tmp_path / "file" / "records.jsonl")
