"""Which runs a comparison is made of, and what they and their folders are called."""

from __future__ import annotations

import random
import re

import pytest

from linformer_kit.compare.variants import variants
from linformer_kit.errors import UserError
from linformer_kit.evidence.report.verdict import is_vanilla

SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,119}")


def names(*vary: str) -> list[str]:
    return [variant.name for variant in variants(vary).chosen]


def folders(*vary: str) -> list[str]:
    return [variant.folder for variant in variants(vary).chosen]


def test_variants_are_combined_and_none_is_trained_twice():
    vary = ["model.projection=full,linear", "model.k=4,8"]
    assert names(*vary) == ["projection full", "projection linear, k 4", "projection linear, k 8"]
    assert folders(*vary) == ["projection-full", "projection-linear-k-4", "projection-linear-k-8"]


def test_a_point_in_a_value_does_not_end_the_key():
    assert names("train.lr=0.5e-3,1.5e-3") == ["lr 0.5e-3", "lr 1.5e-3"]
    assert folders("train.lr=0.5e-3,1.5e-3") == ["lr-0.5e-3", "lr-1.5e-3"]
    assert folders("data.train=a.csv,b.csv") == ["train-a.csv", "train-b.csv"]


def test_keys_with_the_same_last_part_are_named_in_full():
    assert names("train.batch_size=4", "evaluate.batch_size=8", "model.k=2") == [
        "train.batch_size 4, evaluate.batch_size 8, k 2"
    ]


def test_commas_inside_brackets_and_quotes_belong_to_the_value():
    assert names("model.k=[64,32],[32, [1,2]],8") == ["k [64,32]", "k [32, [1,2]]", "k 8"]
    assert names('data.train="a,b.csv",c.csv') == ['train "a,b.csv"', "train c.csv"]
    assert names("data.train={source: a, target: b}") == ["train {source: a, target: b}"]
    assert names("data.text=it's,text") == ["text it's", "text text"]


def test_equal_values_are_one_run_and_it_is_said():
    found = variants(["train.lr=0.001,1e-3,0.002"])
    assert [variant.name for variant in found.chosen] == ["lr 0.001", "lr 0.002"]
    assert found.notes == ["train.lr=1e-3 is the same as train.lr=0.001: trained once."]


@pytest.mark.parametrize(
    "values",
    [
        ["a/b.txt", "a-b.txt", "a b.txt", "a\\b.txt"],
        ["A.csv", "a.csv"],
        ["ä", "a\u0308", "ö", "日本"],
        ["x" * 300 + "1", "x" * 300 + "2"],
        ["..", "../..", ".", "/etc", "~", "-", "a.", "a"],
        ["$HOME", "'`id`'", "a;b", "a|b", "a*b", "a?b", "con", "NUL"],
        ['"seed 1"', '"seed-1"', '""', '" "'],
    ],
)
def test_folder_names_are_safe_and_unique_whatever_the_values(values):
    found = folders(f"data.train={','.join(values)}")
    assert len(found) == len(values)
    assert len({name.casefold() for name in found}) == len(values)
    for name in found:
        assert SAFE.fullmatch(name), name
        assert not name.endswith(".")


def test_folder_names_of_random_values_never_collide():
    draw = random.Random(0)
    values = {"".join(draw.choices("aA.-_/ é", k=draw.randint(1, 6))).strip() for _ in range(400)}
    quoted = [f'"{value}"' for value in values]
    found = variants(["data.text=" + ",".join(quoted)]).chosen
    assert len(found) == len(values)
    assert len({variant.folder.casefold() for variant in found}) == len(values)
    assert all(SAFE.fullmatch(variant.folder) for variant in found)


def test_a_folder_name_depends_on_its_variant_alone():
    (alone,) = folders("data.train=some/file.txt")
    assert alone in folders("data.train=other/file.txt,some/file.txt")


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ([], "at least one --vary"),
        (["model.k"], "--vary takes key=value,value"),
        (["model.k=4,,8"], "--vary takes key=value,value"),
        (["model.k="], "--vary takes key=value,value"),
        (["=3"], "--vary takes key=value,value"),
        (["model.k=[4,8"], "a bracket or a quote is not closed"),
        (["model.k=4]"], "a bracket is closed that was not opened"),
        (['data.text="a'], "a bracket or a quote is not closed"),
        (["model.k=4", "model.k=8"], "model.k is varied twice"),
        (["run=a,b"], "cannot be varied"),
        (["data.cache=a,b"], "cannot be varied"),
        (["data.text=a\x1b[31m"], "control character"),
        (["data.text=a\udc80"], "UTF-8"),
        (["model.k=&x [*x]"], "contains itself"),
    ],
)
def test_a_wrong_vary_is_told(vary, message):
    with pytest.raises(UserError, match=message):
        variants(vary)


@pytest.mark.parametrize(
    ("task", "model", "expected"),
    [
        ("mlm", {"projection": "full"}, True),
        ("mlm", {"k": 8}, False),
        ("clm", {"causal_attention": "full"}, True),
        ("clm", {}, False),
        ("translate", {"projection": "full"}, True),
        ("translate", {"projection": "full", "causal_attention": "slots"}, False),
        ("translate", {"projection": "linear", "causal_attention": "full"}, False),
        ("translate", {"projection": "full", "context_projection": "dynamic"}, False),
    ],
)
def test_vanilla_is_full_attention_everywhere(task, model, expected):
    assert is_vanilla(task, model) is expected
