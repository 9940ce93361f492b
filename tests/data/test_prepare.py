"""Prepared rows: complete, cached by content and options, never half written."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import yaml

from linformer_kit.config.load import load
from linformer_kit.data.counts import notices
from linformer_kit.data.prepare import fingerprint, prepare
from linformer_kit.data.rows import Rows
from linformer_kit.errors import UserError

from ..train import tiny
from . import hostile


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


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path):
    path, folder = tiny.write(tmp_path), tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text((tmp_path / "text.txt").read_text())
    given = [f"data.train={folder}"]
    assert "left out" not in notices("train", prepare(load(path, given)).meta["parts"]["train"], 32)
    for name in ("b.html", "c"):
        (folder / name).write_text("a text")
    counts = prepare(load(path, given)).meta["parts"]["train"]
    assert notices("train", counts, 32)["left out"] == (
        "train: 2 files of data.train not read, because of how the name ends: 'b.html' and 1 more. "
        "Name files to read as .txt."
    )


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
        prepare(load(path, ["data.validation_share=0.0", "data.test_share=0.0"]))


def features(folder, train, **data):
    """A configuration of features in `signal`."""
    values = tiny.values(folder, "classify")
    values["data"] |= {"train": str(train), "features": "signal", **data}
    (folder / "c.yaml").write_text(yaml.safe_dump(values))
    return load(folder / "c.yaml")


def write_features(path, size):
    rows = [{"signal": [[i] * size, [2.0] * size], "label": i % 2} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_features_of_the_user_are_rows_of_numbers(tmp_path):
    prepared = prepare(features(tmp_path, write_features(tmp_path / "s.jsonl", 2)))
    assert prepared.tokenizer() is None
    assert prepared.meta["feature_size"] == 2
    assert prepared.meta["labels"] == ["0", "1"]
    assert prepared.meta["digest"]["tokenizer"] is None


@pytest.mark.parametrize("write", hostile.FEATURES, ids=lambda write: write.__name__)
def test_features_that_are_no_numbers_are_refused_with_their_row(tmp_path, write):
    path = write(tmp_path)
    with pytest.raises(UserError, match=rf"line 21 of .*{path.name}: features must") as caught:
        prepare(features(tmp_path, path, validation_share=0.0, test_share=0.0))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_features_of_another_width_in_another_part_are_refused(tmp_path, part):
    train, other = (write_features(tmp_path / f"{size}.jsonl", size) for size in (2, 3))
    with pytest.raises(UserError, match=r"line 1 of .*3.jsonl: .* all parts: got 3 after 2"):
        prepare(features(tmp_path, train, **{part: str(other)}))


def test_the_digest_follows_the_content_and_not_the_files(tmp_path):
    plain = prepare(load(tiny.write(tmp_path / "a"))).meta
    path = tiny.write(tmp_path / "b")
    packed = tmp_path / "b" / "text.txt.gz"
    packed.write_bytes(gzip.compress((tmp_path / "b" / "text.txt").read_bytes()))
    other = prepare(load(path, [f"data.train={packed}"])).meta
    assert plain["digest"] == other["digest"]
    assert plain["digest"].keys() == {"train", "validation", "test", "tokenizer", "labels"}
    text = (tmp_path / "b" / "text.txt").read_text()
    (tmp_path / "b" / "text.txt").write_text(text.replace("dog", "god"))
    changed = prepare(load(path)).meta["digest"]
    assert changed["train"] != plain["digest"]["train"]


def test_a_changed_label_changes_the_digest(tmp_path):
    path = tiny.write(tmp_path, "classify")
    before = prepare(load(path)).meta["digest"]
    table = (tmp_path / "labels.csv").read_text()
    (tmp_path / "labels.csv").write_text(table.replace(",yes", ",maybe"))
    after = prepare(load(path)).meta["digest"]
    assert before["labels"] != after["labels"]
    assert before["train"] != after["train"]  # no and maybe are not no and yes
    assert before["tokenizer"] == after["tokenizer"]


def test_a_run_brings_its_own_tokenizer(tmp_path):
    path = tiny.write(tmp_path)
    config = load(path)
    first = prepare(config)
    run = tmp_path / "run" / "best"
    first.tokenizer().save_pretrained(run)
    assert prepare(config, tokenizer=run).folder == first.folder  # nothing to do
    with (tmp_path / "text.txt").open("a") as file:
        file.write("§§§ and more\n" * 50)
    other = prepare(config, tokenizer=run)
    assert other.folder != first.folder
    assert other.meta["digest"]["tokenizer"] == first.meta["digest"]["tokenizer"]
    assert other.meta["digest"]["train"] != first.meta["digest"]["train"]
    assert other.meta["parts"]["train"]["unknown"] > 0
    trained = prepare(config)
    assert trained.meta["vocab_size"] == first.meta["vocab_size"] + 1
    assert trained.folder != other.folder
    assert prepare(config, tokenizer=run).folder == other.folder


def test_a_run_brings_its_own_labels(tmp_path):
    path = tiny.write(tmp_path, "classify")
    config = load(path)
    first = prepare(config)
    assert first.meta["labels"] == ["no", "yes"]
    assert prepare(config, labels=["no", "yes"]).folder == first.folder
    other = prepare(config, labels=["yes", "no", "maybe"])
    assert other.meta["labels"] == ["yes", "no", "maybe"]
    ids = [np.asarray(p.part("train")["labels"]) for p in (first, other)]
    np.testing.assert_array_equal(ids[0], 1 - ids[1])
    with (tmp_path / "labels.csv").open("a") as file:
        file.write("what is this,what\n")
    with pytest.raises(
        UserError, match=r"line 218 of .*labels.csv: the label 'what' .*'no', 'yes'"
    ):
        prepare(config, labels=["no", "yes"])


def test_what_a_run_cannot_bring_is_refused(tmp_path):
    config = load(tiny.write(tmp_path))
    with pytest.raises(UserError, match=r"cannot read .*tokenizer.json: No such file"):
        prepare(config, tokenizer=tmp_path)
    with pytest.raises(ValueError, match="has no labels"):
        prepare(config, labels=["a", "b"])
    with pytest.raises(UserError, match="different from each other"):
        prepare(load(tiny.write(tmp_path, "classify")), labels=["a", "a"])


@pytest.mark.parametrize("task", ["mlm", "classify", "translate"])
def test_records_that_all_fell_into_other_parts_are_not_called_empty(tmp_path, task):
    path = tiny.write(tmp_path, task)
    for name in ("text.txt", "upper.txt"):
        (tmp_path / name).write_text("one\n")
    (tmp_path / "labels.csv").write_text("text,label\none,a\n")
    shares = ["data.validation_share=0.5", "data.test_share=0.49999"]
    with pytest.raises(UserError) as caught:
        prepare(load(path, shares))
    assert "the only record of" in str(caught.value)
    assert "by data.validation_share = 0.5 and data.test_share = 0.49999" in str(caught.value)
    assert "lower the shares" in str(caught.value)


def test_a_part_that_was_named_must_hold_something(tmp_path):
    path = tiny.write(tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match=r"data.test is empty: .*empty.txt holds no text"):
        prepare(load(path, [f"data.test={tmp_path / 'empty.txt'}"]))


def test_a_share_that_leaves_a_part_empty_is_said(tmp_path, caplog):
    path = tiny.write(tmp_path)
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    prepared = prepare(load(path, ["data.validation_share=0.000001", "data.test_share=0.0"]))
    assert prepared.part("validation") is None
    (record,) = caplog.records
    assert "no record fell into data.validation_share = 1e-06" in record.getMessage()


@pytest.mark.parametrize("task", ["mlm", "clm"])
def test_a_row_of_one_token_has_nothing_to_predict(tmp_path, task):
    config = load(tiny.write(tmp_path, task))
    data = config.data.model_copy(update={"max_length": 1})
    with pytest.raises(UserError, match=r"data.max_length must be at least 2 .*: got 1"):
        prepare(config.model_copy(update={"data": data}))


@pytest.mark.parametrize("what", ["training the tokenizer", "tokenizing"])
@pytest.mark.parametrize("how", ["gone", "changed"])
def test_a_file_that_is_gone_or_changes_while_it_is_read_is_told(tmp_path, what, how):
    config = load(tiny.write(tmp_path))
    path = tmp_path / "text.txt"

    def tell(now, done, total):
        if now == what and path.exists():
            if how == "gone":
                path.unlink()
            else:
                path.write_text(path.read_text() + "more\n")

    with pytest.raises(UserError, match=r"have changed while|there is no file|No such file"):
        prepare(config, tell=tell)
    assert not [p for p in (tmp_path / "prepared").iterdir() if p.is_dir()]


def test_progress_ends_with_all_that_there_is(tmp_path):
    told = []
    prepare(load(tiny.write(tmp_path)), tell=lambda *what: told.append(what))
    assert told[-1][1] == told[-1][2] == 3 * (tmp_path / "text.txt").stat().st_size


def test_bits_per_byte_count_all_tokens(tmp_path):
    """Tokens and bytes are those of the text, whatever is in the rows."""
    path = tiny.write(tmp_path, "clm")
    counts = [
        prepare(load(path, ["data.pack=false", f"data.max_length={length}"])).meta["parts"]["train"]
        for length in (8, 32)
    ]
    assert counts[0]["tokens"] == counts[1]["tokens"]
    assert counts[0]["bytes"] == counts[1]["bytes"]
    assert counts[0]["cut_tokens"] + counts[1]["cut_tokens"] > 0


@pytest.mark.parametrize(
    ("task", "remedy"), [("translate", "truncate"), ("classify", "truncate or chunk")]
)
def test_the_remedy_for_a_long_text_has_a_meaning_in_training(tmp_path, task, remedy):
    overrides = ["data.on_overflow=error", "data.max_length=16"]
    with pytest.raises(UserError, match=rf"use on_overflow: {remedy}\.$"):
        prepare(load(tiny.write(tmp_path, task), overrides))


def test_texts_that_are_too_short_to_compare_are_not_called_empty(tmp_path):
    path = tiny.write(tmp_path, "embed")
    (tmp_path / "text.txt").write_text("a cat\n" * 9)
    with pytest.raises(UserError, match=r"at least 8 tokens, of which two parts are compared"):
        prepare(load(path))
