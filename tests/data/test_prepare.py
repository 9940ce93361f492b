"""Prepared rows: complete, cached by content and options, never half written."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from linformer_kit.config.load import load
from linformer_kit.data.prepare import fingerprint, prepare
from linformer_kit.data.rows import Rows
from linformer_kit.errors import UserError

from ..train import tiny


def test_packed_rows_are_the_whole_text(tmp_path):
    path = tiny.write(tmp_path)
    config = load(path, ["data.validation_share=0.0", "data.test_share=0.0"])
    prepared = prepare(config)
    tokenizer = prepared.tokenizer()
    rows = Rows(prepared.part("train"))
    ids = np.concatenate([rows[place]["input_ids"] for place in range(len(rows))])
    text = tokenizer.decode(ids).replace("<s>", "").replace("</s>", "\n")
    assert text.split("\n")[:-1] == tiny.SENTENCES
    assert {len(rows[place]["input_ids"]) for place in range(len(rows) - 1)} == {32}
    assert prepared.meta["parts"]["train"]["tokens"] == len(ids)


def test_padded_rows_are_a_document_each(tmp_path):
    config = load(tiny.write(tmp_path), ["data.pack=false", "data.max_length=64"])
    prepared = prepare(config)
    rows = Rows(prepared.part("train"))
    assert len(rows) == prepared.meta["parts"]["train"]["documents"]
    first = prepared.tokenizer().bos_token_id
    assert all(rows[place]["input_ids"][0] == first for place in range(len(rows)))


def test_the_second_time_nothing_is_done(tmp_path):
    config = load(tiny.write(tmp_path))
    prepared = prepare(config)
    before = (prepared.folder / "train.arrow").stat().st_mtime_ns
    assert (prepare(config).folder / "train.arrow").stat().st_mtime_ns == before


def test_the_fingerprint_follows_the_content_and_the_options(tmp_path):
    path = tiny.write(tmp_path)
    base = fingerprint(load(path))
    assert fingerprint(load(path, ["train.lr=0.5", "model.k=4"])) == base
    assert fingerprint(load(path, ["data.max_length=16"])) != base
    assert fingerprint(load(path, ["tokenizer.lowercase=true"])) != base
    assert fingerprint(load(path, ["seed=1"])) != base
    (tmp_path / "text.txt").write_text("other")
    assert fingerprint(load(path)) != base


def test_a_failed_preparation_leaves_nothing(tmp_path):
    path = tiny.write(tmp_path)
    with (tmp_path / "text.txt").open("ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        prepare(load(path))
    assert not [p for p in (tmp_path / "prepared").iterdir() if p.is_dir()]


@pytest.mark.parametrize("task", ["mlm", "classify", "translate"])
def test_an_empty_corpus_is_told(tmp_path, task):
    path = tiny.write(tmp_path, task)
    for name in ("text.txt", "upper.txt"):
        (tmp_path / name).write_text("\n \n")
    (tmp_path / "labels.csv").write_text("text,label\n")
    with pytest.raises(UserError, match="the training corpus is empty"):
        prepare(load(path))


def test_one_label_is_no_classification(tmp_path):
    path = tiny.write(tmp_path, "classify")
    (tmp_path / "labels.csv").write_text("text,label\na,x\nb,x\n")
    with pytest.raises(UserError, match="at least two labels: got only 'x'"):
        prepare(load(path))


def test_features_of_the_user_are_rows_of_numbers(tmp_path):
    rows = [{"signal": [[i, 1.0], [2.0, 3.0]], "label": i % 2} for i in range(40)]
    import json

    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    values = tiny.values(tmp_path, "classify")
    values["data"] |= {"train": str(tmp_path / "s.jsonl"), "features": "signal"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    prepared = prepare(load(tmp_path / "c.yaml"))
    assert prepared.tokenizer() is None
    assert prepared.meta["feature_size"] == 2
    assert prepared.meta["labels"] == ["0", "1"]
