"""CoNLL columns become texts with spans."""

from __future__ import annotations

import pytest

from linformer_kit.data.conll import read
from linformer_kit.data.files import Limits
from linformer_kit.errors import UserError

CONLL = """-DOCSTART- -X- O O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# text = Peter Blackburn
Peter\tNNP\tB-NP\tB-PER
Blackburn\tNNP\tI-NP\tI-PER
-DOCSTART- -X- O O
# NN I-NP O
"""


def records(tmp_path, text, documents="blank-line"):
    path = tmp_path / "a.conll"
    path.write_text(text)
    return list(read(path, documents, Limits()))


def shown(record):
    return record["text"], [(record["text"][s.start : s.end], s.label) for s in record["spans"]]


def test_a_record_is_a_sentence(tmp_path):
    found = records(tmp_path, CONLL)
    assert [place.split(" of ")[0] for place, _ in found] == ["line 3", "line 7", "line 10"]
    assert [shown(record) for _, record in found] == [
        ("EU rejects", [("EU", "ORG")]),
        ("Peter Blackburn", [("Peter Blackburn", "PER")]),
        ("#", []),
    ]


def test_a_record_is_a_document(tmp_path):
    found = records(tmp_path, CONLL, "file")
    assert [shown(record) for _, record in found] == [
        ("EU rejects\nPeter Blackburn", [("EU", "ORG"), ("Peter Blackburn", "PER")]),
        ("#", []),
    ]


def test_crlf_and_a_missing_last_blank_line(tmp_path):
    ((_, record),) = records(tmp_path, "Ada B-p\r\nLee I-p\r\n")
    assert shown(record) == ("Ada Lee", [("Ada Lee", "p")])


def test_columns_are_separated_by_spaces_and_tabs_alone(tmp_path):
    """A word may hold other white space, such as the space inside a French number."""
    ((_, record),) = records(tmp_path, "10\u00a0000 NUM \tB-amount\n\u20ac X I-amount \n")
    assert record["text"] == "10\u00a0000 \u20ac"
    assert record["spans"] == [(0, 8, "amount")]


def test_a_line_without_a_label_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"line 2 of .* must have a word and a label.*'Lee'"):
        records(tmp_path, "Ada B-p\nLee\n")
    with pytest.raises(UserError, match=r"data\.documents must be blank-line .* or file"):
        records(tmp_path, "Ada B-p\n", "line")
