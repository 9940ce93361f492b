"""Any exception about user input becomes one line; what is not about it passes through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linformer_kit.errors import UserError, listed, one_of, shown, user_input


def raised(what, act, **options):
    with pytest.raises(UserError) as error, user_input(what, **options):
        act()
    return str(error.value)


def recurse():
    return recurse()


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        (lambda: json.loads("{"), "Expecting property name"),
        (lambda: {}["width"], "the key 'width' is missing"),
        (lambda: int("x" * 1000), "invalid literal for int()"),
        (lambda: b"\xff".decode(), "can't decode byte 0xff"),
        (lambda: [][1], "IndexError: list index out of range"),
        (lambda: None.weight, "AttributeError"),
        (recurse, "nested too deeply"),
    ],
)
def test_an_exception_is_one_line_with_its_reason(act, reason):
    message = raised("cannot read x", act, remedy="Write it anew.")
    assert message.startswith("cannot read x: ")
    assert reason in message
    assert message.endswith(". Write it anew.")
    assert "\n" not in message
    assert len(message) < 400


def test_a_file_is_named_once(tmp_path):
    path = tmp_path / "gone"
    assert raised(f"cannot read {path}", path.read_bytes).count(str(path)) == 1
    assert str(path) in raised("cannot read the model", path.read_bytes)


@pytest.mark.parametrize("kind", [UserError, BrokenPipeError, KeyboardInterrupt])
def test_what_is_not_about_the_input_passes_through(kind):
    with pytest.raises(kind, match="as it is"), user_input("cannot read x"):
        raise kind("as it is")


def test_the_cause_is_kept():
    with pytest.raises(UserError) as error, user_input("cannot read x"):
        Path("/nowhere/at/all").read_text()
    assert isinstance(error.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (0.5, "0.5"),
        (10**400, "about 2**1328"),
        (-(10**400), "about -2**1328"),
        ("word", "'word' (str)"),
        ("a\nb" * 100, None),
        ([1] * 1000, "[1, 1, 1, 1, 1, 1, ...] (list)"),
    ],
)
def test_a_value_is_shown_in_one_short_line(value, text):
    said = shown(value)
    assert text is None or said == text
    assert len(said) < 80
    assert "\n" not in said


def test_names_are_listed_up_to_a_number():
    assert listed([]) == ""
    assert listed(["a", "b"]) == "a, b"
    assert listed([*"abcdefg"], 3, form=repr) == "'a', 'b', 'c' and 4 more"
    assert len(listed(["x" * 1000])) == 60


def test_a_word_is_known_or_the_nearest_one_is_suggested():
    assert one_of("--part", "test", ("validation", "test")) == "test"
    with pytest.raises(UserError, match=r"must be one of validation, test: got 'tset' .*'test'\?"):
        one_of("--part", "tset", ("validation", "test"))
