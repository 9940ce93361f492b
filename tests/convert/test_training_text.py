"""Text is cut into rows; what is held out is never trained on."""

from __future__ import annotations

import numpy as np
import pytest

from linformer_kit.convert.training_text import read_text
from linformer_kit.errors import UserError
from linformer_kit.models.text_input import Frame

from .pretrained import WORDS, word_tokenizer, write_text


@pytest.fixture
def tokenizer():
    return word_tokenizer()


def test_the_ends_of_a_row_are_those_of_the_tokenizer(tokenizer):
    assert Frame.of(tokenizer) == Frame((2,), (3,))
    row = Frame.of(tokenizer).row(np.array([7, 8]))
    assert row.tolist() == tokenizer("sat on")["input_ids"]


def test_the_last_tenth_of_each_file_is_held_out(tokenizer, tmp_path):
    files = [write_text(tmp_path / f"{n}.txt", 1000, seed=n) for n in range(2)]
    text = read_text([str(file) for file in files], tokenizer, length=20, longest=80)
    assert [len(ids) for ids in text.train] == [900, 900]
    assert [len(ids) for ids in text.held_out] == [100, 100]
    for n, file in enumerate(files):
        whole = tokenizer(file.read_text(), add_special_tokens=False)["input_ids"]
        assert [*text.train[n].tolist(), *text.held_out[n].tolist()] == whole


def test_rows_have_their_length_and_short_rests_are_kept_only_as_short_rows(tokenizer, tmp_path):
    file = write_text(tmp_path / "a.txt", 200)
    text = read_text([str(file)], tokenizer, length=20, longest=80)
    assert [len(row) for row in text.rows(80)] == [80, 80]  # 180 = 2 * 78 + 24
    assert {len(row) for row in text.rows(20)} == {20}  # 180 = 10 * 18
    assert [len(row) for row in text.held_out_rows()] == [20]  # 20 = 18 + 2
    longer = write_text(tmp_path / "b.txt", 220)
    text = read_text([str(longer)], tokenizer, length=50, longest=50)
    assert [len(row) for row in text.rows(50)] == [50, 50, 50, 30]  # 172 = 3 * 48 + 28


def test_the_same_rows_are_held_out_with_and_without_training(tokenizer, tmp_path):
    files = [str(write_text(tmp_path / f"{n}.txt", 1000 - 980 * n, seed=n)) for n in range(2)]
    trained = read_text(files, tokenizer, length=20, longest=80).held_out_rows()
    alone = read_text(files, tokenizer, length=20).held_out_rows()
    assert [row.tolist() for row in alone] == [row.tolist() for row in trained]


@pytest.mark.parametrize(("words", "least"), [(30, 1), (60, 2)])
def test_without_training_a_text_too_short_to_hold_out_a_part_is_held_out(
    tokenizer, tmp_path, words, least
):
    file = write_text(tmp_path / "a.txt", words)
    text = read_text([str(file)], tokenizer, length=20, least=least)
    assert [len(ids) for ids in text.held_out] == [words]
    assert not text.rows(20)


def test_the_digest_follows_the_content(tokenizer, tmp_path):
    first, same, other = (tmp_path / name for name in ("a.txt", "b.txt", "c.txt"))
    for path, seed in ((first, 0), (same, 0), (other, 1)):
        write_text(path, 200, seed=seed)
    digests = [
        read_text([str(path)], tokenizer, length=20, longest=20).digest
        for path in (first, same, other)
    ]
    assert digests[0] == digests[1]
    assert digests[0]["train"] != digests[2]["train"]


@pytest.mark.parametrize(
    ("words", "longest", "message"),
    [
        (10, None, "has 10 tokens and no file with a row of 20"),
        (30, 20, "has 30 tokens: too few for a row of 20 tokens to train on and one of 20"),
        (60, 80, "has 60 tokens: too few for a row of 80 tokens to train on and one of 20"),
    ],
)
def test_text_that_is_too_short_is_refused(tokenizer, tmp_path, words, longest, message):
    file = write_text(tmp_path / "a.txt", words)
    with pytest.raises(UserError, match=message):
        read_text([str(file)], tokenizer, length=20, longest=longest)


def test_a_row_without_room_for_text_is_refused(tokenizer, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(" ".join(WORDS))
    with pytest.raises(UserError, match="rows of 2 tokens leave no room for text"):
        read_text([str(file)], tokenizer, length=2)
