"""The configuration: typed, strict, and one line for each mistake."""

from __future__ import annotations

import copy
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from linformer_kit.config.load import SECTIONS, all_keys, check, load, resolved
from linformer_kit.config.schema import RunConfig
from linformer_kit.config.yaml_text import parse
from linformer_kit.errors import UserError

CONFIGS = sorted((Path(__file__).parents[2] / "src/linformer_kit/configs").glob("*.yaml"))
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
        ("model.rotary=1", "'model.rotary' has no effect in the task 'mlm'"),
        ("train.steps=many", "train.steps: input should be a valid integer: got 'many' (str)."),
        ("train.steps=0", "train.steps: input should be greater than or equal to 1: got 0"),
        ("train.lr='1e-4'", "train.lr"),
        ("data.format=excel", "data.format"),
        ("train.accumulate=3", "train.batch_size must be a multiple of train.accumulate"),
        ("train.label_smoothing=0.1", "train.label_smoothing belongs to the task 'translate'"),
        ("train.head_lr=0.1", "train.head_lr is the rate of a classifier"),
        ("data.test_share=0.97", "must leave something to train on"),
        ("train=5", "train"),
        ("train.steps", "an override is key=value"),
        ("train..steps=1", "an override is key=value"),
        (".steps=1", "an override is key=value"),
        ("=1", "an override is key=value"),
        ("", "an override is key=value"),
        ("=", "an override is key=value"),
        ("train.steps=[", "the override 'train.steps=[': not valid YAML"),
        ("train.steps=", "train.steps: input should be a valid integer: got nothing"),
        ("task.more=1", "task.more: task holds a single value"),
        (
            "task=poem",
            "'classify', 'tag', 'embed' or 'translate': got 'poem'",
        ),
        ("model=5", "model: must be a section with keys of its own: got 5."),
        ("train=null", "train: must be a section with keys of its own: got nothing."),
        ("k=5", "unknown key 'k'. Did you mean 'model.k'?"),
        ("train.steps=0x" + "f" * 5000, "a number of over 300 digits"),
        ("train.steps=" + "1" * 5000, "not a valid value"),
        ("train.steps=" + "x" * 100_000, "train.steps: input should be a valid integer: got 'xxx"),
        ("x" * 100_000, "an override is key=value"),
        ("x" * 100_000 + "=1", "unknown key 'xxx"),
        ("." * 100_000 + "=1", "an override is key=value"),
        ("run=''", "run: must not be empty"),
        ("run=a" + "b" * 5000, "run: "),
        ('run="a\\0b"', "run: must have no control characters"),
        ('run="\\ud800"', "run: input should be a valid string"),
        ("run=2020-01-01", "run: input should be a valid string"),
        ("data.train=''", "data.train: must not be empty"),
        ("data.train=[]", "data.train: list should have at least 1 item"),
        ("data.train=['a', 3]", "data.train.1: input should be a valid string: got 3."),
        ("data.train={source: a}", "the key 'data.train.target' is missing."),
        ("data.train=5", "data.train: input should be a valid string: got 5."),
        ("train.threads=100000", "train.threads: input should be less than or equal to 1024"),
        ("train.workers=100000", "train.workers: input should be less than or equal to 256"),
        ("evaluate.beams=100000", "evaluate.beams: input should be less than or equal to 1024"),
        ("train.batch_size=1000000000000", "train.batch_size: input should be less than"),
        ("train.lr=1e30", "train.lr: input should be less than or equal to 100"),
        ("data.max_length=1e3", "data.max_length: input should be a valid integer: got 1000.0"),
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
        ("!!python/name:os.system", "not valid YAML"),
        ("", "a configuration is a mapping of keys: got nothing"),
        ("# nothing\n", "a configuration is a mapping of keys: got nothing"),
        ("task", "a configuration is a mapping of keys: got 'task' \\(str\\)"),
        ("task: mlm\n---\ntask: clm", "not valid YAML"),
        ("task:\n\tmlm: 1", "not valid YAML"),
        ("task: \0", "not valid YAML: unacceptable character"),
        ("a: &a [*a]", "a value contains itself, line 1"),
        ("&a a: *a\nb: &b {c: *b}", "a value contains itself, line 2"),
        ("a: *nowhere", "not valid YAML: found undefined alias"),
        ("a: " + "[" * 100_000, "nested more than 50 levels deep, line 1"),
        ("a: " + "{b: " * 2000, "nested more than 50 levels deep, line 1"),
        ("- " * 2000, "nested more than 50 levels deep, line 1"),
        ("1: 2", "a key is text: got 1"),
        ("null: 2", "a key is text: got None"),
        ("[a]: 2", "not valid YAML: found unhashable key"),
        ("? {a: 1}\n: 2", "not valid YAML: found unhashable key"),
        ("run: 2020-13-45", "not a valid value \\(month must be in 1..12\\), line 1"),
        ("seed: !!int abc", "not a valid value"),
        ("seed: !!timestamp abc", "not a valid value"),
        ("seed: 0x_", "not a valid value"),
        ("run: !!binary abc", "not valid YAML"),
        ("run: !!set {a}", "the key 'task' is missing"),
        ("a: {b: 1}\na: {b: 2}", "the key 'a' stands twice, line 2"),
        ("<<: 5", "not valid YAML"),
        ("<<: {a: 1}\n<<: {a: 2}", "the key '<<' stands twice, line 2"),
        ("%YAML 3.0\n---\na: 1", "not valid YAML"),
        ("x" * 2**20 + "x", "must have at most 1,048,576 bytes"),
    ],
    ids=lambda text: text[:20],
)
def test_a_broken_file_is_told(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        load(write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_aliases_that_expand_without_end_are_told_at_once(tmp_path):
    lines = ["a: &a0 [x, x]"] + [f"b{n}: &a{n + 1} [*a{n}, *a{n}]" for n in range(60)]
    with pytest.raises(UserError, match="aliases expand to more than 100,000 values"):
        load(write(tmp_path, "\n".join(lines)))


def test_merges_of_mappings_that_expand_without_end_are_told_at_once(tmp_path):
    lines = ["a: &a0 {x: 1}"]
    lines += [f"b{n}: &a{n + 1} {{<<: [*a{n}, *a{n}, *a{n}]}}" for n in range(40)]
    with pytest.raises(UserError, match="aliases expand to more than 100,000 values"):
        load(write(tmp_path, "\n".join(lines)))


def test_anchors_and_merges_are_read(tmp_path):
    text = """
task: mlm
run: r
data: {train: python-docs}
model: {k: 16}
train: &both {batch_size: 4}
evaluate:
  <<: *both
  beams: 2
"""
    config = load(write(tmp_path, text))
    assert (config.evaluate.batch_size, config.evaluate.beams) == (4, 2)


@pytest.mark.parametrize("content", [b"task: \xff\xfe", "task: mlm".encode("utf-16")])
def test_a_file_that_is_not_utf8_is_told(tmp_path, content):
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not UTF-8, byte"):
        load(path)


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + yaml.safe_dump(GOOD).encode())
    assert load(path).run == "r"


def test_what_is_not_a_regular_file_is_told(tmp_path):
    """A pipe that nobody writes to must not be waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name, message in (
        (".", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("loop", "cannot read the configuration"),
        ("none/c.yaml", "cannot read the configuration"),
        ("x" * 300, "cannot read the configuration"),
        ("a\0b", "cannot read the configuration"),
    ):
        with pytest.raises(UserError, match=message):
            load(tmp_path / name)


def wrong_values(hint):
    """Values that no key of this type takes."""
    kinds = str(hint)
    if "bool" in kinds and "Any" not in kinds:
        return ["yes", 1, 0.0, [True], {"a": 1}]
    if "float" in kinds:
        return ["abc", True, [1.0], {"a": 1}, -1e30, 1e30, 10**30, math.nan, math.inf, -math.inf]
    if "int" in kinds:
        return ["abc", 1.5, True, [1], {"a": 1}, -1, 10**30, math.nan, math.inf]
    return [5, 1.5, True, [[]], {"a": 1}, "", "\0"]


PLAIN = [name for name in all_keys() if not name.startswith("model.")]


@pytest.mark.parametrize("name", PLAIN)
def test_a_wrong_type_or_an_absurd_value_is_one_line_with_the_key(tmp_path, name):
    section, _, key = name.rpartition(".")
    hints = get_type_hints(SECTIONS[section] if section else RunConfig, include_extras=True)
    tried = [5, "x", [1]] if name == "data.options" else wrong_values(hints[key])
    for value in tried:
        values = copy.deepcopy(GOOD)
        (values.setdefault(section, {}) if section else values)[key] = value
        with pytest.raises(UserError) as caught:
            check(values, where="c.yaml")
        message = str(caught.value)
        assert name in message, value
        assert "\n" not in message
        assert len(message) < 300


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot read the configuration"):
        load(tmp_path / "no.yaml")


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("3", 3), ("1.5", 1.5), ("a", "a")])
def test_numbers_are_those_of_yaml_1_2(text, value):
    assert parse(text) == value


def test_every_key_is_known_once():
    assert len(set(all_keys())) == len(all_keys())


def test_a_configuration_is_checked_without_torch(tmp_path):
    path = write(tmp_path, GOOD)
    code = (
        "import sys\nfrom pathlib import Path\nfrom linformer_kit.config.load import load\n"
        f"load(Path({str(path)!r}))\n"
        "print(*(name for name in ('torch', 'transformers', 'numpy') if name in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (0, "\n"), answer.stderr
