"""The header of a record says what a number was measured on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch

import linformer_kit
from linformer_kit.measure.machine import describe


def test_machine_versions_seed_and_time_are_there():
    header = describe(seed=7, threads=3)
    assert header["seed"] == 7
    assert header["threads"] == 3
    assert header["torch"] == torch.__version__
    assert header["linformer-kit"] == linformer_kit.__version__
    assert header["linformer"] == "0.2.3"
    assert header["cpu"]
    assert header["memory_bytes"] > 2**20
    assert header["time"].endswith("+00:00")
    assert json.loads(json.dumps(header)) == header


def test_the_commit_is_that_of_the_source_tree():
    root = Path(linformer_kit.__file__).parents[2]
    answer = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True
    )
    commit = describe(seed=0, threads=1)["commit"]
    if answer.returncode or not (root / ".git").exists():
        assert commit is None
    else:
        assert commit.removesuffix("-dirty") == answer.stdout.strip()
