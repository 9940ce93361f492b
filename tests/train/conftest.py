"""Fixtures of the tests of training."""

from __future__ import annotations

import pytest

from linformer_kit.config.load import load
from linformer_kit.train.run import train

from . import commands, tiny


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """Of the tiny run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("results")
    train(load(tiny.write(folder)))
    return commands.results(folder / "run")
