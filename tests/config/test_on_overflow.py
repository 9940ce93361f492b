"""Which policy for long texts has a meaning where."""

from __future__ import annotations

from typing import get_args

import pytest

from linformer_kit.config.load import check
from linformer_kit.config.on_overflow import DEFAULTS, POLICIES, policy_for, why_refused
from linformer_kit.config.schema import Task
from linformer_kit.errors import UserError

TASKS = get_args(Task)


def config(task, **data):
    return check({"task": task, "run": "r", "data": {"train": "x", **data}}, where="here")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_in_a_configuration_is_taken_or_refused_by_name(task, policy):
    if why_refused("train", policy, task) is None:
        assert policy_for("evaluate", config(task, on_overflow=policy)) == policy
        return
    with pytest.raises(UserError, match=f"data.on_overflow: {policy} has no meaning") as error:
        config(task, on_overflow=policy)
    assert " or " in str(error.value) or "Use " in str(error.value)  # what to use instead


@pytest.mark.parametrize("task", TASKS)
def test_extend_is_not_for_training(task):
    with pytest.raises(UserError, match=r"raise it"):
        config(task, on_overflow="extend")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_default_with_a_meaning_in_every_command(task):
    for use in ("train", "evaluate", "predict"):
        assert why_refused(use, policy_for(use, config(task)), task) is None
    assert policy_for("train", config(task)) == DEFAULTS[task]


@pytest.mark.parametrize(
    ("use", "task", "asked", "message"),
    [
        ("predict", "clm", "chunk", "continued from its end"),
        ("evaluate", "translate", "chunk", "is not known. Use error or truncate or extend"),
        ("predict", "mlm", "cut", "must be one of error, truncate, chunk, extend: got 'cut'"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(use, task, asked, message):
    with pytest.raises(UserError, match=message):
        policy_for(use, config(task), asked)


def test_predict_takes_the_policy_of_the_run_where_it_has_a_meaning():
    assert policy_for("predict", config("classify", on_overflow="chunk")) == "chunk"
    assert policy_for("predict", config("clm", on_overflow="chunk")) == "truncate"
    assert policy_for("predict", config("classify", on_overflow="chunk"), "error") == "error"


@pytest.mark.parametrize("task", ["clm", "translate"])
def test_an_overlap_without_effect_is_refused(task):
    with pytest.raises(UserError, match=r"chunk_overlap has no effect.*got 0\.5"):
        config(task, chunk_overlap=0.5)
