"""Fixtures of the tests of the server."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.serve.models import load_models

from ..predict.conftest import runs  # noqa: F401  (a fixture)
from .servers import local

TASKS = ("mlm", "classify", "tag", "embed", "clm", "translate")


@pytest.fixture(scope="session")
def models(runs):  # noqa: F811
    """One model of each task, named after it."""
    torch.set_num_threads(1)
    return load_models([f"{task}={runs(task).path}" for task in TASKS], say=lambda line: None)


@pytest.fixture(scope="session")
def server(models):
    with local(models) as started:
        yield started


@pytest.fixture
def client(server):
    with server.client() as made:
        yield made
