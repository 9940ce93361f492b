"""Bad input to every command: one line on stderr, exit code 2, nothing lost or overwritten."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from pathlib import Path

import pytest

from linformer_kit.cli.app import run
from linformer_kit.config.load import load
from linformer_kit.train.run import train

from ..data import hostile as files
from ..train import tiny
from . import hostile

SHARED = {".lock", ".lock-holder", "prepared"}  # locks, and the cache of prepared data


def model_cases():
    for name, damage in hostile.MODEL_DAMAGE.items():
        for command in ("evaluate", "predict", "export", "spectrum"):
            if command == "spectrum" and name in hostile.FINE_FOR_AN_ENCODER:
                continue

            def case(folder, damage=damage, command=command):
                damage(folder / "mlm/run/best")
                return {
                    "evaluate": ["evaluate", "mlm/run"],
                    "predict": ["predict", "mlm/run", hostile.TEXT["mlm"]],
                    "export": ["export", "mlm/run", "--to", "new.onnx"],
                    "spectrum": ["spectrum", "mlm/run", "--text", "mlm/text.txt"],
                }[command]

            yield f"{command}: {name}", case


def run_cases():
    for name, damage in hostile.RUN_DAMAGE.items():
        for command in (["evaluate", "mlm/run"], ["predict", "mlm/run", hostile.TEXT["mlm"]]):

            def case(folder, damage=damage, command=command):
                damage(folder / "mlm/run")
                return command

            yield f"{command[0]}: {name}", case


def checkpoint_cases():
    for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json", "model.safetensors"):
        for how in ("missing", "truncated", "garbage"):

            def case(folder, name=name, how=how):
                (folder / "mlm/run/evaluation.json").unlink()
                for checkpoint in (folder / "mlm/run/checkpoints").iterdir():
                    file = checkpoint / name
                    if how == "missing":
                        file.unlink()
                    elif how == "truncated":
                        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
                    else:
                        file.write_bytes(os.urandom(200))
                return ["train", "mlm/tiny.yaml"]

            yield f"train: {name} {how}", case


def config_cases():
    for name, content in hostile.CONFIGS.items():
        for command in ("train", "prepare"):

            def case(folder, content=content, command=command):
                if content is not None:
                    (folder / "bad.yaml").write_bytes(content)
                return [command, "bad.yaml"]

            yield f"{command}: configuration {name}", case
    for override in hostile.OVERRIDES:
        yield f"train: {override}", lambda folder, o=override: ["train", "tiny.yaml", o]


def file_cases():
    groups = {
        files.TEXTS: [],
        files.TABLES: [],
        files.LABELS: ["task=classify"],
        files.FEATURES: ["task=classify", "data.features=signal"],
    }
    for group, overrides in groups.items():
        for write in group:

            def case(folder, write=write, overrides=overrides):
                source = f"data.train={write(folder)}"
                return ["prepare", "tiny.yaml", source, "data.max_document_mb=1", *overrides]

            yield f"prepare: {write.__name__.removeprefix('write_')}", case


def argument_cases():
    for line in hostile.ARGUMENTS:
        yield f"linformer {line}", lambda folder, line=line: shlex.split(line)
    for name, content in (("empty", b""), ("garbage", b"\x08\x07garbage"), ("text", b"hello\n")):
        yield f"predict: onnx {name}", hostile.onnx_file(content)


CASES = dict(
    case
    for cases in (
        model_cases, run_cases, checkpoint_cases, config_cases, file_cases, argument_cases,
    )
    for case in cases()
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a finished run of three tasks, and files that belong to the user."""
    home = tmp_path_factory.mktemp("trained")
    before = Path.cwd()
    os.chdir(home)
    try:
        for task in hostile.TASKS:
            path = tiny.write(home / task, task, steps=4, eval_every=2, save_every=2)
            path.write_text(path.read_text().replace(f"{home}/", ""))
            train(load(path.relative_to(home)))
    finally:
        os.chdir(before)
    shutil.copy(home / "mlm/tiny.yaml", home / "tiny.yaml")
    settings = (home / "tiny.yaml").read_text().replace("mlm/run", "new-run")
    (home / "tiny.yaml").write_text(settings)
    (home / "empty").mkdir()
    for name in ("thesis.txt", "thesis.onnx", "README.md"):
        (home / name).write_text("years of work")
    return home


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    """The content of every file, the size of one that is large."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    named = {path.relative_to(folder): path for path in found}
    return {
        name: path.read_bytes() if path.stat().st_size < 10**7 else path.stat().st_size
        for name, path in named.items()
        if not SHARED & {*name.parts}
    }


def test_there_are_enough_cases():
    assert len(CASES) >= 150


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line_and_exit_code_2(folder, capfd, name):
    arguments = CASES[name](folder)
    before = contents(folder)
    capfd.readouterr()
    started = time.monotonic()
    code = run(arguments)  # a traceback would fail here
    seconds = time.monotonic() - started
    said = capfd.readouterr().err.strip()
    if not arguments or arguments == ["bench"]:
        assert code == 0  # the help
        return
    assert code == 2, said
    lines = [line for line in said.splitlines() if line.startswith("linformer: ")]
    assert lines, said
    assert len(lines) <= 2
    assert "Traceback" not in said
    after = contents(folder)
    assert {path: after.get(path) for path in before} == before
    assert not list(folder.rglob("owned"))
    assert seconds < 20, "a mistake is told at once"
