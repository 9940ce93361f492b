"""`linformer ...` in processes of their own, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from linformer_kit.runs.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SECONDS = 90  # after which a test gives up
slow = partial(pytest.param, marks=pytest.mark.slow)  # a case of many


@dataclass
class Command:
    """A command that runs, and what it says."""

    process: Any
    log: Path

    @property
    def out(self) -> str:
        return self.log.with_suffix(".out").read_text(errors="replace")

    @property
    def err(self) -> str:
        return self.log.with_suffix(".err").read_text(errors="replace")

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        """The exit code; that of a signal is negative."""
        self.process.join(SECONDS)
        if self.process.exitcode is None:
            self.kill()
            raise AssertionError(f"not done after {SECONDS} s: {self.out}{self.err}")
        return int(self.process.exitcode)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.join()

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until something is the case while the command runs."""
        end = time.monotonic() + SECONDS
        while not condition():
            assert self.process.is_alive(), f"ended too early: {self.out}{self.err}"
            assert time.monotonic() < end, f"waited for {SECONDS} s: {self.out}{self.err}"
            time.sleep(0.002)


def start(
    log: Path, *arguments: object, before: Callable[..., None] | None = None, given: object = None
) -> Command:
    """Start `linformer` with these arguments; `before(given)` is called in its process first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["linformer_kit.train.run", "linformer_kit.evaluate.evaluation"])
    words = [str(argument) for argument in arguments]
    process = context.Process(target=_run, args=(log, words, before, given))
    process.start()
    return Command(process, log)


def run(log: Path, *arguments: object, **options: Any) -> tuple[int, str, str]:
    """The exit code of a command, and what it said."""
    command = start(log, *arguments, **options)
    code = command.wait()
    return code, command.out, command.err


def _run(log: Path, arguments: list[str], before: Callable[..., None] | None, given: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    for suffix, stream in ((".out", sys.stdout), (".err", sys.stderr)):
        file = os.open(log.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, stream.fileno())
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests run under nohup
    sys.argv = ["linformer", *arguments]
    from linformer_kit.cli import main

    if before is not None:
        before(given)
    main()


def pause(place: Path) -> None:
    """Say that this place is reached, and wait until `resume` is called, or a signal comes."""
    place.touch()
    while place.exists():
        time.sleep(0.002)


def resume(place: Path) -> None:
    place.unlink()


def results(run: Path) -> dict[str, Any]:
    """What must not depend on interruptions: the models, and the steps and scores of the log."""
    folder = RunFolder(run)
    return {
        "last": (folder.last / "model.safetensors").read_bytes(),
        "best": (folder.best / "model.safetensors").read_bytes(),
        "score": (folder.best / "score.json").read_bytes(),
        "validation": {
            line["step"]: line["validation"] for line in folder.metrics() if "validation" in line
        },
        "evaluation": folder.evaluation(),
    }


def pause_in_step(given: tuple[Path, int]) -> None:
    """Pause in a step of training, before its loss is computed."""
    place, step = given
    from linformer_kit.training.trainer import RunTrainer

    compute_loss = RunTrainer.compute_loss

    def paused(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if model.training and self.state.global_step == step - 1:
            pause(place)
        return compute_loss(self, model, *args, **kwargs)

    RunTrainer.compute_loss = paused


def pause_while_saving(given: tuple[Path, int]) -> None:
    """Pause within a checkpoint: some of its files are there."""
    place, step = given
    from linformer_kit.training.trainer import RunTrainer

    save = RunTrainer._save_optimizer_and_scheduler

    def paused(self: Any, output_dir: str) -> None:
        save(self, output_dir)
        if self.state.global_step == step:
            pause(place)

    RunTrainer._save_optimizer_and_scheduler = paused


def start_and_pause(
    tmp_path: Path,
    path: Path,
    before: Callable[..., None],
    *given: object,
    words: Sequence[str] = (),
) -> tuple[Command, Path]:
    """Start a training that pauses; the file that lets it go on when it is removed."""
    place = tmp_path / "paused"
    command = start(tmp_path / "log", "train", path, *words, before=before, given=(place, *given))
    command.wait_for(place.exists)
    return command, place


def finish(tmp_path: Path, *arguments: object) -> str:
    """What a command says that must succeed."""
    code, out, err = run(tmp_path / "again", *arguments)
    assert (code, err) == (0, "")
    return out
