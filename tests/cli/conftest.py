"""A trained run that the tests of several commands use."""

from __future__ import annotations

import pytest

from linformer_kit.config.load import load
from linformer_kit.train.run import train

from ..train import tiny


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The configuration of a run of four steps; the run is beside it."""
    folder = tmp_path_factory.mktemp("trained")
    path = tiny.write(folder, steps=4, eval_every=4)
    train(load(path))
    return path
