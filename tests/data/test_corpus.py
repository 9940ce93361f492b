"""Files of every kind give the same records, and every kind of bad file one line."""

from __future__ import annotations

import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from linformer_kit.config.schema import DataSection, Sides
from linformer_kit.data.corpus import Corpus
from linformer_kit.errors import UserError

from . import hostile
from .limits import at_most

PAIRS = [("Good day, you", 'Guten "Tag"'), ("two\nlines", "zwei Zeilen"), ("ü", "Ü")]


def corpus(task="mlm", **data):
    section = DataSection(**{"validation_share": 0.0, "test_share": 0.0, **data})
    return Corpus(task=task, data=section, seed=0)


def texts(**data):
    return [record["text"] for record in corpus(**data).part("train")]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_tables_give_the_named_columns(tmp_path, suffix):
    path = tmp_path / f"pairs.{suffix}"
    rows = [{"de": de, "en": en, "id": "x"} for en, de in PAIRS]
    if suffix == "csv":
        quoted = ['"{}","{}",x'.format(de.replace('"', '""'), en) for en, de in PAIRS]
        path.write_text("de,en,id\n" + "\n".join(quoted) + "\n")
    elif suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    read = corpus("translate", train=str(path), source="en", target="de").part("train")
    assert [(record["source"], record["target"]) for record in read] == PAIRS


def test_tabs_are_not_quoted(tmp_path):
    (tmp_path / "a.tsv").write_text('text\tn\n"so\t1\n')
    assert texts(train=str(tmp_path / "a.tsv")) == ['"so']


@pytest.mark.parametrize(
    ("documents", "expected"),
    [("file", ["a\nb\n\nc\n"]), ("line", ["a", "b", "", "c"]), ("blank-line", ["a\nb", "c"])],
)
def test_a_text_file_is_cut_into_documents(tmp_path, documents, expected):
    (tmp_path / "a.txt").write_text("a\nb\n\nc\n")
    assert texts(train=str(tmp_path / "a.txt"), documents=documents) == expected


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.ZstdCompressor().compress)],
)
def test_packed_files_are_unpacked(tmp_path, suffix, pack):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(pack("eins\nzwei ü\n".encode()))
    assert texts(train=str(path), documents="line") == ["eins", "zwei ü"]


def test_a_folder_a_glob_and_a_list_are_read_in_order(tmp_path):
    for name in "bac":
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert texts(train=str(tmp_path)) == ["a", "b", "c"]
    assert texts(train=str(tmp_path / "[ab].txt")) == ["a", "b"]
    assert texts(train=[str(tmp_path / "c.txt"), str(tmp_path / "a.txt")]) == ["c", "a"]


def test_two_files_are_read_side_by_side(tmp_path):
    (tmp_path / "en").write_text("one\ntwo\n")
    (tmp_path / "de").write_text("eins\nzwei\n")
    sides = Sides(source=str(tmp_path / "en"), target=str(tmp_path / "de"))
    read = list(corpus("translate", train=sides).part("train"))
    assert (read[1]["source"], read[1]["target"]) == ("two", "zwei")
    (tmp_path / "de").write_text("eins\n")
    with pytest.raises(UserError, match="en has more than 1"):
        list(corpus("translate", train=sides).part("train"))


def test_parts_are_disjoint_and_follow_from_the_seed(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(map(str, range(500))))
    data = {"train": str(tmp_path / "a.txt"), "documents": "line"}
    shares = {"validation_share": 0.2, "test_share": 0.1}
    parts = [
        [r["text"] for r in corpus(**data, **shares).part(p)]
        for p in ("train", "validation", "test")
    ]
    assert sorted(text for part in parts for text in part) == sorted(map(str, range(500)))
    assert 60 < len(parts[1]) < 140
    assert [r["text"] for r in corpus(**data, **shares).part("test")] == parts[2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"fine\n\xff\xfe\n", "line 2 of .* holds the byte 0xff"),
        ("a.txt", b"x" * 1_000_001, "line 1 of .* is longer than data.max_document_mb = 1 MB"),
        ("a.csv", b"id,words\n1,x\n", "has no column 'text': it has 'id', 'words'"),
        ("a.csv", b"text,b\n1,2,3\n", "line 2 of .* must have 2 fields, .*: got 3. Add or remove"),
        ("a.jsonl", b'{"text": "a"}\n{oops\n', "line 2 of .* is not valid JSON"),
        ("a.jsonl", b'{"words": "a"}\n', "line 1 of .* has no key 'text': it has 'words'. Name"),
        ("a.jsonl", b'{"text": 5}\n', "must hold text: got int"),
        ("a.parquet", b"nonsense", "cannot read .* as parquet after row 0"),
        ("a.txt.gz", b"nonsense", "cannot read .* after line 0"),
        ("a.txt.zst", b"nonsense", "cannot read .* after line 0"),
    ],
)
def test_a_bad_file_is_told_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        texts(train=str(tmp_path / name), max_document_mb=1)


@pytest.mark.parametrize("source", ["no/such/file.txt", "no/*.txt"])
def test_a_source_that_is_not_there_is_told(source):
    with pytest.raises(UserError, match=r"there is no file|no file matches"):
        texts(train=source)


def test_a_built_in_corpus_refuses_another_task():
    with pytest.raises(UserError, match="serves the task translate: got task 'mlm'"):
        texts(train="phrases-en-de")


@pytest.mark.parametrize(
    ("train", "test"), [("digits", "listops"), ("listops", "digits"), ("digits", "a.csv")]
)
def test_all_parts_hold_texts_or_all_hold_features(tmp_path, monkeypatch, train, test):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("text,label\nfine,1\n")
    with pytest.raises(UserError, match=r"must hold the same|must hold them too"):
        list(corpus("classify", train=train, test=test).part("test"))


# What a line about each file says, beside the name of the file.
HOSTILE = {
    hostile.write_truncated_gz: r"after line \d+: the file ends in the middle",
    hostile.write_truncated_xz: r"after line \d+: the file ends in the middle",
    hostile.write_truncated_zst: "after line 500: the file ends in the middle",
    hostile.write_second_frame_truncated_zst: "after line 500: the file ends in the middle",
    hostile.write_garbage_gz: "after line 0: .* copy or compress it again",
    hostile.write_garbage_xz: "after line 0: .* copy or compress it again",
    hostile.write_garbage_zst: "after line 0: .* copy or compress it again",
    hostile.write_empty_gz: "after line 0: the file is empty",
    hostile.write_empty_zst: "after line 0: the file is empty",
    hostile.write_flipped_gz: "incorrect data check",
    hostile.write_trailing_garbage_gz: "after line 500",
    hostile.write_trailing_garbage_xz: "after line 500",
    hostile.write_bomb_gz: "line 1 of .* longer than data.max_document_mb = 1 MB",
    hostile.write_bomb_xz: "line 1 of .* longer than data.max_document_mb = 1 MB",
    hostile.write_bomb_zst: "line 1 of .* longer than data.max_document_mb = 1 MB",
    hostile.write_wide_window_zst: "too much memory",
    hostile.write_large_dictionary_xz: "Memory usage limit exceeded",
    hostile.write_utf16: "line 1 of .* begins like UTF-16",
    hostile.write_utf16_without_bom: "line 1 of .* holds a NUL byte",
    hostile.write_latin1: "line 2 of .* holds the byte 0xf6",
    hostile.write_binary: "line 1 of .* holds a NUL byte",
    hostile.write_sparse: "line 1 of .* longer than data.max_document_mb = 1 MB",
    hostile.write_long_line: "line 1 of .* longer than data.max_document_mb = 1 MB",
    hostile.write_fifo: "must be a regular file: got a FIFO",
    hostile.write_compressed_fifo: "must be a regular file: got a FIFO",
    hostile.write_socket: "must be a regular file: got a socket",
    hostile.write_endless_device: "must be a regular file: got a device",
    hostile.write_dangling_link: "which does not exist",
    hostile.write_link_to_itself: "levels of symbolic links",
    hostile.write_folder_with_a_fifo: "b.txt must be a regular file: got a FIFO",
    hostile.write_folder_with_a_dangling_link: "b.txt: it is a link to nothing here",
    hostile.write_folder_without_text: "holds no file to read",
    hostile.write_deep_json: "line 2 of .* nested too deeply",
    hostile.write_lone_surrogate: r"line 2 of .* the lone surrogate \\ud800",
    hostile.write_huge_integer: "line 2 of .* 10000 digits",
    hostile.write_null_text: "line 2 of .* must hold text: got null",
    hostile.write_nan_text: "line 2 of .* must hold text: got float",
    hostile.write_truncated_json: r"line 2 of .* Unterminated string .* column 10. Write",
    hostile.write_pretty_json: "one JSON object a line: got an array, for line 1 begins .* jq",
    hostile.write_csv_with_nul: "line 3 of .* holds a NUL byte",
    hostile.write_csv_with_open_quote: "line 3 of .* Close every quote",
    hostile.write_csv_with_huge_open_quote: "line 2 of .* is longer than .* Close its quotes",
    hostile.write_csv_with_stray_quote: "line 2 of .* double a quote inside",
    hostile.write_csv_with_ragged_rows: "line 3 of .* must have 2 fields, .*: got 3. Add or remove",
    hostile.write_csv_with_two_columns_of_one_name: "has 2 columns 'text'",
    hostile.write_truncated_parquet: "as parquet after row 0: .* copy or write it again",
    hostile.write_garbage_parquet: "as parquet after row 0: .* copy or write it again",
    hostile.write_damaged_parquet: "as parquet after row 0: .* copy or write it again",
    hostile.write_empty_parquet: "as parquet after row 0: .* copy or write it again",
    hostile.write_parquet_of_numbers: "row 1 of .* must hold text: got int",
    hostile.write_parquet_of_nulls: "row 2 of .* must hold text: got null",
    hostile.write_parquet_of_bytes: "row 1 of .* must hold text: got bytes",
    hostile.write_parquet_that_is_not_utf8: "row 2 of .* can't decode byte 0xff",
    hostile.write_parquet_bomb: "row 1 of .* longer than data.max_document_mb = 1 MB",
    hostile.write_parquet_fifo: "must be a regular file: got a FIFO",
    hostile.write_empty_label: "line 2 of .* must not be empty: got ' '",
    hostile.write_null_label: "line 2 of .* text or a whole number: got null",
    hostile.write_boolean_label: "line 2 of .* text or a whole number: got True",
    hostile.write_fractional_label: "line 2 of .* text or a whole number: got 0.5",
    hostile.write_list_label: "line 2 of .* text or a whole number: got",
    hostile.write_endless_label: "line 2 of .* at most 1000 characters: got 5,000",
    hostile.write_empty_csv_label: "line 3 of .* must not be empty: got ''",
}


def test_every_hostile_file_is_tried():
    assert set(HOSTILE) == {*hostile.TEXTS, *hostile.TABLES, *hostile.LABELS}


@pytest.mark.parametrize("write", HOSTILE, ids=lambda write: write.__name__)
def test_a_hostile_file_is_refused_with_its_place(tmp_path, write):
    path = write(tmp_path)
    task = "classify" if write in hostile.LABELS else "mlm"
    made = corpus(task, train=str(path), documents="line", max_document_mb=1)
    with at_most(10), pytest.raises(UserError, match=HOSTILE[write]) as caught:
        list(made.part("train"))
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    assert len(message) < 600


@pytest.mark.parametrize("documents", ["file", "blank-line"])
@pytest.mark.parametrize("write", hostile.TEXTS, ids=lambda write: write.__name__)
def test_a_hostile_file_is_refused_whatever_a_document_is(tmp_path, write, documents):
    path = write(tmp_path)
    made = corpus(train=str(path), documents=documents, max_document_mb=1)
    with at_most(10), pytest.raises(UserError, match=path.name):
        list(made.part("train"))
