"""Spans are checked when they are read, and the row is named."""

from __future__ import annotations

import pytest

from linformer_kit.data.spans import Span, Spans, from_words, joined, read_spans, redacted
from linformer_kit.errors import UserError

TEXT = "Ada met Bo."


def spans(*given):
    return [{"start": start, "end": end, "label": label} for start, end, label in given]


def test_spans_are_read_in_order_as_objects_lists_or_json():
    expected = [Span(0, 3, "person"), Span(8, 10, "person")]
    assert read_spans(spans((8, 10, "person"), (0, 3, "person")), TEXT, "row 1") == expected
    assert read_spans([[0, 3, "person"], [8, 10, "person"]], TEXT, "row 1") == expected
    assert read_spans('[[0, 3, "person"], [8, 10, "person"]]', TEXT, "row 1") == expected
    assert read_spans([], TEXT, "row 1") == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (spans((0, 12, "x")), "inside its text of 11 characters.*start 0 and end 12"),
        (spans((-1, 2, "x")), "inside its text.*start -1"),
        (spans((3, 3, "x")), "end after its start"),
        (spans((5, 2, "x")), "end after its start"),
        (spans((0, 5, "x"), (4, 7, "y")), r"must not overlap: got 0 to 5 \('x'\) and 4 to 7"),
        (spans((0, 5, "x"), (0, 5, "x")), "must not overlap"),
        (spans((0, 3, "")), "label of a span must be text"),
        (spans((0, 3, 7)), "label of a span must be text"),
        (spans((0.0, 3, "x")), "start of a span must be a whole number"),
        (spans((0, True, "x")), "end of a span must be a whole number"),
        ([{"start": 0, "end": 3}], "got no label"),
        ([[0, 3]], "a span must be"),
        (["x"], "a span must be"),
        (None, "must be a list .* got null"),
        ({"start": 0}, "must be a list .* got dict"),
        ("[", "not valid JSON"),
    ],
)
def test_wrong_spans_are_refused_with_the_row(value, message):
    with pytest.raises(UserError, match=f"row 7: .*{message}"):
        read_spans(value, TEXT, "row 7")


def test_labelled_words_become_a_text_and_spans():
    text, found = from_words(["Ada", "Lovelace", "met", "Bo"], ["B-p", "I-p", "O", "S-p"], "row 1")
    assert text == "Ada Lovelace met Bo"
    assert [(text[one.start : one.end], one.label) for one in found] == [
        ("Ada Lovelace", "p"),
        ("Bo", "p"),
    ]


@pytest.mark.parametrize(
    ("words", "labels", "message"),
    [
        (["a"], ["O", "O"], "one label for each word: got 1 words and 2 labels"),
        (["a"], [0], "labels must be a list of text"),
        ("a b", ["O", "O"], "words must be a list of text"),
        (["a", " "], ["O", "O"], "a word must not be empty"),
    ],
)
def test_wrong_words_are_refused_with_the_row(words, labels, message):
    with pytest.raises(UserError, match=f"row 2: .*{message}"):
        from_words(words, labels, "row 2")


def test_texts_are_joined_with_their_spans():
    text, found = joined([("a b", Spans([Span(2, 3, "x")])), ("c", Spans([Span(0, 1, "y")]))])
    assert text == "a b\nc"
    assert [(text[one.start : one.end], one.label) for one in found] == [("b", "x"), ("c", "y")]


def test_redacted_text_has_labels_in_the_place_of_spans():
    found = [Span(8, 10, "person"), Span(0, 3, "person")]
    assert redacted("Ada met Bo.", found) == "[person] met [person]."
    assert redacted("👩‍💻\r\nAda ", [Span(5, 8, "p")]) == "👩‍💻\r\n[p] "
