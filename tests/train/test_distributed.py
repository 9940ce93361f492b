"""torchrun with two processes gives the loss curve and the model of one, by DDP and by FSDP."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForMaskedLM

from linformer_kit.config.load import load
from linformer_kit.runs.folder import RunFolder
from linformer_kit.train.run import train

from . import tiny

SETTINGS = {"steps": 6, "log_every": 1, "eval_every": 3, "save_every": 3}


def curve(folder):
    return [line["loss"] for line in folder.metrics() if "loss" in line]


def weights(folder):
    model = AutoModelForMaskedLM.from_pretrained(folder.last)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    path = tiny.write(folder, **SETTINGS)
    return train(load(path, tiny.NO_DROPOUT))


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_train_as_one(tmp_path, alone, way):
    path = tiny.write(tmp_path, **SETTINGS)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        "-m", "linformer_kit.cli", "train", str(path), *tiny.NO_DROPOUT,
    ]  # fmt: skip
    if way == "fsdp":
        command.append("train.fsdp=true")
    answer = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    together = RunFolder(tmp_path / "run")
    sharded = together.last_checkpoint() / "pytorch_model_fsdp.bin"
    assert sharded.is_file() == (way == "fsdp")  # accelerate alone would run DDP on CPUs, silently
    assert curve(together) == pytest.approx(curve(alone), rel=1e-4)
    torch.testing.assert_close(weights(together), weights(alone), rtol=1e-3, atol=1e-4)
    ours, theirs = together.evaluation()["metrics"], alone.evaluation()["metrics"]
    assert ours["perplexity"] == pytest.approx(theirs["perplexity"], rel=1e-3)
