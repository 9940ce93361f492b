"""Fixtures of the tests of predictions."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.config.load import load
from linformer_kit.runs.folder import RunFolder
from linformer_kit.train.run import train

from ..train import tiny


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A trained run of each task, made when it is first asked for."""
    made = {}

    def run(task: str) -> RunFolder:
        if task not in made:
            path = tiny.write(tmp_path_factory.mktemp(task), task, steps=2, eval_every=2)
            with torch.enable_grad():
                train(load(path))
            made[task] = RunFolder(path.parent / "run")
        return made[task]

    return run
