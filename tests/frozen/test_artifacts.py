"""Runs, conversions and indexes that an earlier version wrote are read, and go on."""

import json
import shutil

import pytest

from . import artifacts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("artifacts") / "copy"
    return shutil.copytree(artifacts.FOLDER, made)


@pytest.mark.parametrize("question", artifacts.QUESTIONS)
def test_what_was_written_before(folder, question):
    frozen = json.loads((folder / "answers.json").read_text())[question]
    seen = artifacts.QUESTIONS[question](folder)
    assert _shape(seen) == _shape(frozen)
    assert list(_numbers(seen)) == pytest.approx(list(_numbers(frozen)), rel=2e-3, abs=1e-4)


def _shape(value):
    """All but the floats, whose last bits depend on the processor."""
    if isinstance(value, dict):
        return {key: _shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shape(each) for each in value]
    return "a float" if isinstance(value, float) else value


def _numbers(value):
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
