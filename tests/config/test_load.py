"""The configuration: typed, strict, and one line for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from linformer_kit.config.load import all_keys, load, resolved
from linformer_kit.config.yaml_text import parse
from linformer_kit.errors import UserError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
GOOD = {"task": "mlm", "run": "r", "data": {"train": "python-docs"}, "model": {"k": 16}}


def write(tmp_path, values):
    path = tmp_path / "c.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_shipped_configuration_is_valid_and_every_key_has_a_comment(path):
    load(path)
    for line in path.read_text().splitlines():
        if re.match(r" *[a-z_0-9]+:", line):
            assert re.search(r" # \S", line), f"no comment: {line}"


def test_the_shipped_configurations_are_there():
    names = {path.stem for path in CONFIGS}
    quick = {f"quick-{task}" for task in ("mlm", "clm", "classify", "translate")}
    assert quick | {"book-mlm-512", "book-mlm-1024", "documents", "listops"} <= names
    assert {"wmt14-k32", "wmt14-k64", "wmt14-vanilla"} <= names


def test_overrides_are_yaml_and_win(tmp_path):
    config = load(write(tmp_path, GOOD), ["train.lr=1e-4", "train.steps=7", "model.k=32"])
    assert (config.train.lr, config.train.steps, config.model.options["k"]) == (1e-4, 7, 32)


def test_a_resolved_configuration_loads_as_the_same(tmp_path):
    config = load(write(tmp_path, GOOD))
    assert load(write(tmp_path, resolved(config))) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.step=3", "unknown key 'train.step'. Did you mean 'train.steps'?"),
        ("lr=3", "unknown key 'lr'. Did you mean 'train.lr'?"),
        ("model.hiden_size=3", "unknown key 'model.hiden_size'. Did you mean 'model.hidden_size'?"),
        ("model.window=3", "'model.window' has no effect in the task 'mlm'"),
        ("train.steps=many", "train.steps: input should be a valid integer: got 'many' (str)."),
        ("train.steps=0", "train.steps: input should be greater than or equal to 1: got 0"),
        ("train.lr='1e-4'", "train.lr"),
        ("data.format=excel", "data.format"),
        ("train.accumulate=3", "train.batch_size must be a multiple of train.accumulate"),
        ("train.label_smoothing=0.1", "train.label_smoothing belongs to the task 'translate'"),
        ("data.test_share=0.97", "must leave something to train on"),
        ("train=5", "train"),
        ("train.steps", "an override is key=value"),
    ],
)
def test_a_mistake_is_one_line_with_the_key(tmp_path, override, message):
    with pytest.raises(UserError) as caught:
        load(write(tmp_path, GOOD), [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: [", "not valid YAML"),
        ("- 1", "a configuration is a mapping"),
        ("task: mlm\ntask: clm", "stands twice, line 2"),
        ("task: mlm\nrun: r", "the key 'data' is missing"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_a_broken_file_is_told(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        load(write(tmp_path, text))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot read the configuration"):
        load(tmp_path / "no.yaml")


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("3", 3), ("1.5", 1.5), ("a", "a")])
def test_numbers_are_those_of_yaml_1_2(text, value):
    assert parse(text) == value


def test_every_key_is_known_once():
    assert len(set(all_keys())) == len(all_keys())
