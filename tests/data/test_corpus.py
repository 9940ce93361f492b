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
    with pytest.raises(UserError, match="en goes on after line 1"):
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
        ("a.txt", b"fine\n\xff\xfe\n", "line 2 holds the byte 0xff"),
        ("a.txt", b"x" * 1_000_001, "line 1 of .* is longer than data.max_document_mb = 1 MB"),
        ("a.csv", b"id,words\n1,x\n", "has no column 'text': it has 'id', 'words'"),
        ("a.csv", b"text,b\n1,2,3\n", "line 2 of .* has 3 fields where the header has 2"),
        ("a.jsonl", b'{"text": "a"}\n{oops\n', "line 2 of .* is not valid JSON"),
        ("a.jsonl", b'{"words": "a"}\n', "has no column 'text'"),
        ("a.jsonl", b'{"text": 5}\n', "must hold text: got int"),
        ("a.parquet", b"nonsense", "cannot read .* as parquet"),
        ("a.txt.gz", b"nonsense", "cannot read .* after line 0"),
        ("a.txt.zst", b"nonsense", "cannot read .* after line 0"),
    ],
)
def test_a_bad_file_is_told_with_its_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        texts(train=str(tmp_path / name), max_document_mb=1)


@pytest.mark.parametrize("source", ["no/such/file.txt", "no/*.txt", "hub:no/such-data-set"])
def test_a_source_that_is_not_there_is_told(source, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"there is no file|no file matches|cannot load"):
        texts(train=source)


def test_a_built_in_corpus_refuses_another_task():
    with pytest.raises(UserError, match="serves the task translate: got task 'mlm'"):
        texts(train="phrases-en-de")
