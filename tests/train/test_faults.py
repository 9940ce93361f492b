"""A rank that is killed in training: the others end with one line, and the run resumes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linformer_kit.runs.folder import RunFolder

from . import commands, group, tiny

CUT = "train.sequence_parallel=2"
LOST = "linformer: another process of this run has ended, so this one ends too."
LAST = 40


def written(folder: Path) -> Path:
    """A run that is long enough to be killed in its middle."""
    return tiny.write(folder, steps=LAST, log_every=1, eval_every=20, save_every=4)


def logged(run: RunFolder) -> int:
    return max((line["step"] for line in run.metrics()), default=0)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    group.run(folder / "logs", 2, "train", written(folder), CUT)
    return commands.results(folder / "run")


def test_a_rank_is_killed_the_other_ends_and_the_same_command_resumes(tmp_path, uninterrupted):
    moment = random.Random()
    step, killed = moment.randint(2, LAST - 4), moment.randint(0, 1)
    path, run = written(tmp_path), RunFolder(tmp_path / "run")
    with group.started(tmp_path / "logs", 2, "train", path, CUT) as ranks:
        ranks.ranks[0].wait_for(lambda: logged(run) >= step)
        ranks.ranks[killed].kill()
        ended = time.monotonic()
        other = ranks.ranks[1 - killed]
        assert other.wait() == 2, f"step {step}, rank {killed}"
        assert time.monotonic() - ended < 60
        assert other.err.startswith(LOST)
        assert other.err.count("\n") == 1
    group.run(tmp_path / "again", 2, "train", path, CUT)
    assert commands.results(tmp_path / "run") == uninterrupted, f"step {step}, rank {killed}"


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_ranks_are_killed_at_five_moments(tmp_path, uninterrupted):
    """--overwrite counts for the first start alone."""
    path, run = written(tmp_path), RunFolder(tmp_path / "run")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        "--max-restarts", "5", "-m", "linformer_kit.cli", "train", str(path), CUT, "--overwrite",
    ]  # fmt: skip
    random_moment = random.Random()
    moments = sorted(random_moment.sample(range(2, LAST - 2), 5))
    with (tmp_path / "log").open("w") as log:
        launcher = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        try:
            for step in moments:
                wait_until(lambda step=step: logged(run) >= step, launcher)
                ranks = children(launcher.pid)
                os.kill(random_moment.choice(ranks), signal.SIGKILL)
                wait_until(lambda old=ranks: restarted(launcher.pid, old), launcher)
            assert launcher.wait(300) == 0
        finally:
            launcher.kill()
    assert commands.results(tmp_path / "run") == uninterrupted, moments
    assert LOST in (tmp_path / "log").read_text()


def wait_until(condition, launcher) -> None:
    end = time.monotonic() + 600
    while not condition():
        assert launcher.poll() is None, "torchrun has ended"
        assert time.monotonic() < end
        time.sleep(0.01)


def children(parent: int) -> list[int]:
    """The processes that torchrun has started."""
    found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [each for each in map(int, found) if b"linformer_kit" in cmdline(each)]


def cmdline(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def restarted(parent: int, old: list[int]) -> bool:
    """Whether torchrun has started both ranks again."""
    now = children(parent)
    return len(now) == 2 and not set(now) & set(old)
