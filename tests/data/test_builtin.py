"""The built-in corpora: what they hold, and that it follows from the seed."""

from __future__ import annotations

import builtins
import itertools
import random
import re

import pytest

from linformer_kit.data.builtin import BUILTIN, letters, listops, needle, python_docs
from linformer_kit.data.spans import read_spans
from linformer_kit.errors import UserError


def first(name, count, seed=0, **options):
    return list(itertools.islice(BUILTIN[name].records(options, seed), count))


def test_python_docs_do_not_depend_on_what_a_shell_adds(monkeypatch):
    def display() -> None:
        """Shows something, in a notebook."""

    before = list(python_docs._of_builtins())
    assert "Return the absolute value" in before[0]
    monkeypatch.setattr(builtins, "display", display, raising=False)
    assert list(python_docs._of_builtins()) == before


def test_python_docs_are_english_prose():
    documents = first("python-docs", 60)
    text = " ".join(document["text"] for document in documents)
    assert len(text.split()) > 20_000
    assert text.count(" the ") > 500


def test_phrases_are_pairs_without_repetition():
    pairs = first("phrases-en-de", 500)
    assert len({pair["source"] for pair in pairs}) == 500
    by_source = {pair["source"]: pair["target"] for pair in first("phrases-en-de", 5000)}
    assert by_source["two"] == "zwei"
    assert pairs == first("phrases-en-de", 500)
    assert pairs != first("phrases-en-de", 500, seed=1)


def test_needles_are_in_their_documents_and_those_of_the_test_are_not():
    made = first("needle", 300, max_words=200)
    kinds = [one["text"].startswith("What is the pass key of") for one in made]
    assert 90 < sum(kinds) < 210
    assert len({one["text"] for one in made}) == 300
    for one in made:
        words = len(one["positive"].split())
        assert words < 200 + 60
    keys = [one for one, passkey in zip(made, kinds, strict=True) if passkey]
    for one in keys:
        name = one["text"].removeprefix("What is the pass key of ").removesuffix("?")
        assert one["positive"].count(f"the pass key of {name}.") == 1
    every = " ".join(one["positive"] for one in made)
    assert not any(sentence in every for sentence in needle.HELD_OUT_SHORT)
    for kind in needle.KINDS:
        asked = needle.needles(kind, 50, random.Random(0), held_out=True)
        assert not {one.question for one in asked} & {one["text"] for one in made}
    assert made == first("needle", 300, max_words=200)
    with pytest.raises(UserError, match="min_words of at most max_words: got 300 and 200"):
        first("needle", 1, min_words=300, max_words=200)


def test_letters_have_spans_that_are_what_they_say():
    made = first("letters", 200)
    forms = {
        "email": r"[\w.-]+@[a-z]+\.(com|org|net|example|co\.uk|de)",
        "date": r"[\w .,-]*\d[\w .,-]*",
        "amount": r"([€$£]|CHF )?[\d,.]+( euros| EUR| dollars)?",
        "person": r"[^\W\d].*\S",
    }
    for letter in made:
        text, spans = letter["text"], letter["spans"]
        assert read_spans([list(span) for span in spans], text, "a letter") == spans
        for span in spans:
            assert re.fullmatch(forms[span.label], text[span.start : span.end])
        others = letters.TYPES[3:]  # every address is a span
        assert text.count("@") == sum(span.label in others for span in spans)
    everything = "".join(letter["text"] for letter in made)
    assert all(part in everything for part in ("\r\n", "🙂", "e\u0301", "é"))
    assert made == first("letters", 200)
    assert made != first("letters", 200, seed=1)
    with pytest.raises(UserError, match="at most max_sentences: got 9 and 3"):
        first("letters", 1, min_sentences=9, max_sentences=3)


def test_listops_are_of_the_length_asked_and_have_the_value_they_say():
    for example in first("listops", 30):
        assert 500 < len(example["text"].split()) < 2000
        assert str(listops.evaluate(example["text"])) == example["label"]


def test_listops_operators():
    assert listops.evaluate("[MAX 2 9 [MIN 4 7 ] 0 ]") == 9
    assert listops.evaluate("[MED 1 4 6 8 ]") == 5
    assert listops.evaluate("[SM 9 9 9 ]") == 7


def test_digits_are_pixels_from_0_to_1():
    (example,) = first("digits", 1)
    assert len(example["features"]) == 64
    assert all(0.0 <= pixel <= 1.0 for (pixel,) in example["features"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"example": 3}, "Did you mean 'examples'"),
        ({"examples": "many"}, "must be a whole number"),
        ({"min_length": 9, "max_length": 10}, "between min_length and max_length"),
    ],
)
def test_a_wrong_option_is_told(options, message):
    with pytest.raises(UserError, match=message):
        first("listops", 1, **options)


@pytest.mark.parametrize("value", ["3", 2.0, True, None, [3], {"a": 1}, 0, -1, 10**30])
@pytest.mark.parametrize(("corpus", "name"), [("listops", "max_depth"), ("phrases-en-de", "pairs")])
def test_an_option_is_a_whole_number_within_its_range(corpus, name, value):
    with pytest.raises(UserError, match=f"data.options.{name} must be"):
        first(corpus, 1, **{name: value})


@pytest.mark.parametrize("corpus", ["digits", "python-docs"])
def test_a_corpus_without_options_says_so(corpus):
    with pytest.raises(UserError, match=f"{corpus} has no options: got data.options none at all"):
        first(corpus, 1, **{"none at all": 1})
