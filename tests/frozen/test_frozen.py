"""What users see is as it was when it was frozen."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from . import contents


def _frozen(name: str) -> Any:
    return json.loads((contents.FILES / f"{name}.json").read_text())


def test_the_help_of_every_command() -> None:
    frozen, seen = _frozen("commands"), contents.commands()
    assert seen.keys() == frozen.keys()
    for name, text in frozen.items():
        assert seen[name] == text


def test_routes_of_the_server() -> None:
    assert contents.routes() == _frozen("routes")


def test_names_and_shapes_of_weights() -> None:
    frozen, seen = _frozen("state_dicts"), contents.state_dicts()
    assert seen.keys() == frozen.keys()
    for case, names in frozen.items():
        assert seen[case] == names, case


def test_outputs_and_gradients() -> None:
    _compare("outputs", contents.outputs(), rtol=1e-4)


@pytest.mark.slow
def test_weights_after_some_steps_of_training(tmp_path: Path) -> None:
    _compare("runs", contents.runs(tmp_path), rtol=1e-3)


def _compare(name: str, seen: dict[str, dict[str, torch.Tensor]], *, rtol: float) -> None:
    """Closely: the last bits depend on the processor."""
    frozen = _frozen(name)
    assert seen.keys() == frozen.keys()
    for case, numbers in frozen.items():
        assert contents.numbers(seen[case]) == pytest.approx(numbers, rel=rtol, abs=1e-4), case
