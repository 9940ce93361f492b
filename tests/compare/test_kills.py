"""A comparison that is killed resumes, and nothing that it did not write is ever gone."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest

from linformer_kit.compare import measure
from linformer_kit.compare.comparison import compare
from linformer_kit.errors import UserError

from ..train import tiny

VARY = ["model.projection=full,linear", "model.k=4,8"]


def compare_it(path, home, overwrite=False):
    """What a process does; memory is not measured, which would start others."""
    os.environ["OMP_NUM_THREADS"] = "1"
    measure.training_memory = lambda config: 1
    if compare(path, [], VARY, seeds=2, out=home, overwrite=overwrite) is None:
        raise SystemExit(130)


def start(path, home):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["linformer_kit.compare.comparison", "linformer_kit.evaluate.evaluation"]
    )
    process = context.Process(target=compare_it, args=(path, home))
    process.start()
    return process


def results(home):
    lines = (home / "records.jsonl").read_text().splitlines()
    return {
        record["run"].rpartition("/")[2]: record["metrics"]
        for line in lines
        if "run" in (record := json.loads(line))
    }


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_comparison_that_is_ended_at_any_moment_resumes_to_the_same_result(tmp_path, how):
    path = tiny.write(tmp_path, steps=8, eval_every=4, save_every=2)
    compare_it(path, tmp_path / "whole")
    home = tmp_path / "killed"
    draw = random.Random(int(how))
    kills = 0
    for _ in range(40):
        process = start(path, home)
        process.join(draw.uniform(0.5, 3.0) if kills < 6 else None)
        if process.exitcode is None:
            os.kill(process.pid, how)
            process.join()
            kills += 1
        elif process.exitcode == 0:
            break
    assert kills >= 2
    assert results(home) == results(tmp_path / "whole")
    assert not list(home.glob(".saving*"))


def everything(folder):
    return {
        path: path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_overwriting_keeps_whatever_the_comparison_did_not_write(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "training_memory", lambda config: 1)
    path = tiny.write(tmp_path, steps=2, eval_every=2)
    home = tmp_path / "c"
    assert compare(path, [], ["model.k=4"], out=home)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("mine")
    foreign = [
        home / "notes.md",
        home / "k-4" / "notes.txt",
        home / "k-4" / "best" / "mine.txt",
        home / "k-4" / "checkpoints" / "mine" / "deep.txt",
        home / "k-16" / "mine.txt",
    ]
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    (home / "link").symlink_to(outside)
    (home / "k-4" / "link").symlink_to(outside / "thesis.txt")
    assert compare(path, [], ["model.k=4"], out=home, overwrite=True)
    assert all(file.read_text() == "mine" for file in foreign)
    assert (home / "link").readlink() == outside
    assert (home / "k-4" / "link").readlink() == outside / "thesis.txt"
    assert (outside / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("where", [".", "..", "data", "link", "runs/a", "home"])
def test_overwriting_never_touches_a_folder_of_something_else(tmp_path, monkeypatch, where):
    project = tmp_path / "home" / "project"
    (project / "data").mkdir(parents=True)
    (project / "runs" / "a").mkdir(parents=True)
    (project / "README.md").write_text("# Mine")
    (project / "records.jsonl").write_text('{"mine": 1}\n')
    (project / "config.yaml").write_text("task: mlm\n")
    (project / "runs" / "a" / "config.yaml").write_text("task: mlm\n")
    (project / "link").symlink_to(project / "data")
    path = tiny.write(project / "data", steps=2)
    monkeypatch.chdir(project)
    out = tmp_path / "home" if where == "home" else Path(where)
    before = everything(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="is not a comparison's folder"):
            compare(path, [], ["model.k=4,8"], out=out, overwrite=overwrite)
    assert everything(tmp_path) == before
