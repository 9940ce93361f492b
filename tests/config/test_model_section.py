"""The section `model` has the keys and types of LinformerConfig; wrong values are one line."""

from __future__ import annotations

import dataclasses
import types
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel

from linformer_kit.config.load import check, resolved
from linformer_kit.config.model_keys import MODEL_KEYS
from linformer_kit.config.model_section import (
    DEFAULT_K,
    NEED_MAX_LENGTH,
    Activation,
    ModelSection,
    PlanSection,
    Positions,
    Projection,
    Sharing,
)
from linformer_kit.core import (
    activations,
    attention,
    cost,
    decoder,
    encoder,
    positions,
    projection_kinds,
)
from linformer_kit.errors import UserError
from linformer_kit.models import LinformerConfig
from linformer_kit.models.config import POOLINGS
from linformer_kit.training.build import model_config

# The folder to start from, `model.from`, is not a field of LinformerConfig.
KEYS = [name for name in ModelSection.model_fields if name != "start"]
FIELDS = {field.name: field for field in dataclasses.fields(LinformerConfig)}
TYPES = {
    name: field.type for name, field in FIELDS.items()
}  # not text: annotations there are not postponed


def kinds(hint: Any) -> set[str]:
    """The plain types that an annotation stands for."""
    origin = get_origin(hint)
    if origin is Annotated:
        return kinds(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return set().union(*map(kinds, get_args(hint)))
    if origin is Literal:
        return {type(value).__name__ for value in get_args(hint)}
    if origin is not None:
        return {origin.__name__}
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return {"dict"}
    return {hint.__name__}


def values(task: str = "mlm", max_length: int = 32, **model: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"train": "x.txt", "max_length": max_length}
    usual = {} if task == "clm" else {"k": 8}
    return {"task": task, "run": "r", "data": data, "model": {**usual, **model}}


def task_of(name: str) -> str:
    return next(task for task, keys in MODEL_KEYS.items() if name in keys)


def test_the_keys_are_those_that_the_tasks_use():
    used = {name for keys in MODEL_KEYS.values() for name in keys}
    assert {field.alias or name for name, field in ModelSection.model_fields.items()} == used
    assert used - {"from"} == set(KEYS) <= FIELDS.keys()


@pytest.mark.parametrize("name", KEYS)
def test_a_key_has_the_type_of_the_field(name):
    ours = kinds(get_type_hints(ModelSection, include_extras=True)[name])
    theirs = kinds(TYPES[name])
    assert ours | {"int"} == theirs | {"int"} if "float" in theirs else ours == theirs


@pytest.mark.parametrize("name", KEYS)
def test_the_default_of_the_field_is_a_valid_value(name):
    field = FIELDS[name]
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    section = ModelSection.model_validate({name: default})
    assert section.options == {name: default}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Activation, activations.Activation),
        (Positions, positions.Positions),
        (Projection, projection_kinds.ProjectionKind),
        (Sharing, projection_kinds.Sharing),
        (ModelSection.model_fields["norm"].annotation, encoder.Norm),
        (ModelSection.model_fields["dropout_kind"].annotation, attention.DropoutKind),
        (get_args(ModelSection.model_fields["causal_attention"].annotation)[0], decoder.CausalKind),
        (PlanSection.model_fields["shorten"].annotation, cost.Shorten),
        (PlanSection.model_fields["attend"].annotation, cost.Attend),
    ],
)
def test_the_names_are_those_of_the_core(ours, theirs):
    assert get_args(ours) == get_args(theirs)


def test_the_constants_are_those_of_the_model():
    assert get_args(ModelSection.model_fields["pooling"].annotation) == POOLINGS
    assert FIELDS["k"].default == DEFAULT_K
    assert set(NEED_MAX_LENGTH) == set(projection_kinds.NEED_MAX_LENGTH)


def test_only_what_was_given_is_set_and_saved():
    config = check(values(k=None, projection="full", bias=False), where="x")
    expected = {"k": None, "projection": "full", "bias": False}
    assert config.model.options == expected
    assert resolved(config)["model"] == expected
    assert check(resolved(config), where="x") == config


def test_every_kind_of_value_comes_back_as_it_was_given():
    model = {
        "k": [6, 4],
        "plan": {"shorten": "keys", "attend": "fused"},
        "hidden_dropout_prob": 0,
        "layer_norm_eps": 1e-12,
        "qkv_bias": None,
        "num_key_value_heads": 1,
    }
    assert check(values(**model), where="x").model.options == model


WRONG: dict[str, list[Any]] = {
    "int": ["abc", 1.5, True, [1], {"a": 1}, -1, 10**30, float("nan"), float("inf")],
    "float": ["abc", True, [1.0], {"a": 1}, -1.0, 1e30, 10**400, float("nan"), float("inf")],
    "str": ["foo", 1, 1.5, True, ["gelu"], {"a": 1}, ""],
    "bool": ["yes", 1, 0.0, [True], {"a": 1}],
    "dict": ["foo", 1, True, ["input"], {}, {"shorten": "input"}, {"shorten": "x", "attend": "y"}],
    "list": [[], ["a"], [1.5], [True], [0], [10**30]],
}


@pytest.mark.parametrize("name", KEYS)
def test_a_wrong_type_or_an_absurd_value_is_one_line_with_the_key(name):
    accepted = kinds(TYPES[name])
    main = next(kind for kind in ("dict", "float", "int", "str", "bool") if kind in accepted)
    tried = WRONG[main] + (WRONG["list"] if "list" in accepted else [])
    if "NoneType" not in accepted:
        tried = [*tried, None]
    if "list" in accepted:
        tried = [value for value in tried if value != [1]]
    for value in tried:
        with pytest.raises(UserError) as caught:
            check(values(task_of(name), **{name: value}), where="x.yaml")
        message = str(caught.value)
        assert message.startswith("x.yaml: ")
        assert f"model.{name}" in message, value
        assert "\n" not in message
        assert len(message) < 300


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"k": 64}, "model.k must be at most data.max_length"),
        ({"k": [8, 64]}, "model.k must be at most data.max_length"),
        ({"task": "translate", "context_projection": "linear", "context_k": 64}, "model.context_k"),
    ],
)
def test_a_k_beyond_max_length_is_told_with_the_names_of_the_configuration(model, message):
    with pytest.raises(UserError, match=message) as caught:
        check(values(**model), where="x")
    assert "got 64 and 32" in str(caught.value)
    assert "max_position_embeddings" not in str(caught.value)


def test_the_default_k_is_held_to_max_length_too():
    given = values()
    del given["model"]["k"]
    with pytest.raises(UserError, match="got 256 and 32"):
        check(given, where="x")


@pytest.mark.parametrize("projection", ["full", "dynamic"])
def test_a_projection_without_a_longest_input_takes_any_k(projection):
    assert check(values(k=64, projection=projection), where="x").model.options["k"] == 64


class Tokenizer:
    """What `model_config` asks of a tokenizer."""

    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

    def __len__(self) -> int:
        return 10


@pytest.mark.parametrize(
    "model",
    [
        {"context_projection": "linear", "num_slots": 64},
        {"hidden_size": 10, "num_attention_heads": 3},
        {"k": [8, 8, 8], "num_hidden_layers": 2},
        {"num_attention_heads": 4, "num_key_value_heads": 3},
        {"neighbours": 4},
        {"k": None},
        {"projection": "max", "plan": {"shorten": "keys", "attend": "fused"}},
    ],
    ids=str,
)
def test_values_that_do_not_fit_each_other_are_told_when_the_model_is_built(model):
    config = check(values("translate", **model), where="x")
    with pytest.raises(UserError) as caught:
        model_config(config, SimpleNamespace(meta={}), Tokenizer())
    message = str(caught.value)
    assert message.startswith("model: ")
    assert "max_position_embeddings" not in message
    assert "\n" not in message
