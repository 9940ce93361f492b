"""Digests follow the content and nothing else."""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest

from linformer_kit.config.schema import TokenizerSection
from linformer_kit.data import digest, tokenizer
from linformer_kit.errors import UserError


def of(*rows):
    made = digest.RowDigest()
    assert list(made.through(rows)) == list(rows)
    return made.hex


def test_the_digest_of_a_row_is_that_of_its_values_byte_by_byte():
    row = {"labels": 3, "input_ids": np.array([5, 6]), "reference": "ü"}
    said = b"input_ids 16 " + struct.pack("<2q", 5, 6)
    said += b"labels 8 " + struct.pack("<q", 3)
    said += b"reference 2 " + "ü".encode()
    assert of(row) == hashlib.blake2b(said, digest_size=16).hexdigest()


@pytest.mark.parametrize("kind", [np.int32, np.uint16, ">i8"])
def test_the_type_and_the_byte_order_of_ids_do_not_matter(kind):
    plain = {"input_ids": np.array([1, 2, 3])}
    assert of({"input_ids": np.array([1, 2, 3], dtype=kind)}) == of(plain)


def test_every_value_matters():
    base = {"input_ids": np.array([1, 2]), "labels": 0, "length": 2}
    others = [
        base | {"input_ids": np.array([1, 3])},
        base | {"labels": 1},
        base | {"length": 1},
        base | {"word_starts": np.array([True, False])},
    ]
    digests = {of(base), of(base, base), of(), *map(of, others)}
    assert len(digests) == 7
    two = [{"input_ids": np.array([1])}, {"input_ids": np.array([2, 3])}]
    assert of(*two) != of({"input_ids": np.array([1, 2])}, {"input_ids": np.array([3])})
    features = np.array([0.5, 1.5], dtype=np.float32)
    assert of({"features": features}) != of({"features": features[::-1]})


def test_the_order_of_names_matters():
    assert digest.names_digest(["a", "b"]) != digest.names_digest(["b", "a"])
    assert digest.names_digest(["a", "b"]) != digest.names_digest(["ab"])


def test_a_tokenizer_keeps_its_digest_when_it_is_used_and_saved_again(tmp_path):
    section = TokenizerSection(kind="bpe", vocab_size=300)
    made = tokenizer.make(section, "mlm", [{"text": "the old dog and the ü"}] * 9)
    made.save_pretrained(tmp_path / "a")
    again = tokenizer.load(str(tmp_path / "a"), "mlm")
    again(["the old", "dog"], padding=True, truncation=True, max_length=4)
    again.save_pretrained(tmp_path / "b")
    first, second = (tmp_path / name / "tokenizer.json" for name in "ab")
    assert first.read_bytes() != second.read_bytes()
    assert digest.tokenizer_digest(first) == digest.tokenizer_digest(tmp_path / "b")
    content = json.loads(first.read_text())
    content["model"]["merges"].pop()
    second.write_text(json.dumps(content))
    assert digest.tokenizer_digest(first) != digest.tokenizer_digest(second)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_tokenizer_is_told(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read the tokenizer .*tokenizer.json"):
        digest.tokenizer_digest(tmp_path)
