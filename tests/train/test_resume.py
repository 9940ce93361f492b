"""Killed at any moment and started again, a run ends with the same bits."""

from __future__ import annotations

import os
import random
import resource
import signal
import time

import pytest

from linformer_kit.config.load import load
from linformer_kit.data.prepare import prepare
from linformer_kit.errors import UserError
from linformer_kit.runs.folder import RunFolder
from linformer_kit.runs.models import step_of
from linformer_kit.train.run import train

from . import tiny


def weights(folder):
    return (folder / "run/last/model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(load(tiny.write(folder)))
    return weights(folder)


def wait_until(condition, process) -> bool:
    while process.is_alive():
        if condition():
            return True
        time.sleep(0.0005)
    return False


def kill(process) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def steps_saved(run) -> int:
    checkpoint = run.last_checkpoint()
    return 0 if checkpoint is None else step_of(checkpoint)


def finish(path):
    process = tiny.start(path)
    process.join()
    assert process.exitcode == 0


def test_killed_in_the_middle_of_saving_it_ends_with_the_same_bits(tmp_path, uninterrupted):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    for step in (4, 8):
        process = tiny.start(path)
        staging = run.checkpoints / f".saving-checkpoint-{step}"
        assert wait_until(staging.exists, process)
        kill(process)
        assert run.last_checkpoint() is not None
        assert step_of(run.last_checkpoint()) in (step - 2, step)
    finish(path)
    assert weights(tmp_path) == uninterrupted
    steps = [line["step"] for line in run.metrics() if "loss" in line]
    assert steps == [2, 4, 6, 8, 10, 12]  # each once
    assert not list(run.checkpoints.glob(".saving*"))


def test_an_embedding_run_that_is_killed_ends_with_the_same_bits(tmp_path):
    sizes = {"matryoshka": [16, 8]}
    train(load(tiny.write(tmp_path / "whole", "embed", **sizes)))
    path = tiny.write(tmp_path / "killed", "embed", **sizes)
    run = RunFolder(tmp_path / "killed/run")
    process = tiny.start(path)
    assert wait_until(lambda: steps_saved(run) >= 4, process)
    kill(process)
    assert not run.finished
    finish(path)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    best = "run/best/model.safetensors"
    assert (tmp_path / "killed" / best).read_bytes() == (tmp_path / "whole" / best).read_bytes()
    assert run.evaluation() == RunFolder(tmp_path / "whole/run").evaluation()
    validations = [line["validation"] for line in run.metrics() if "validation" in line]
    assert {frozenset(one) for one in validations} == {
        frozenset(("recall@1", "recall@10", "ndcg@10", "mrr"))
    }


@pytest.mark.slow
@pytest.mark.parametrize("task", ["mlm", "clm", "classify", "tag", "embed", "translate"])
def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path, task):
    train(load(tiny.write(tmp_path / "whole", task, steps=120)))
    *_, end = RunFolder(tmp_path / "whole/run").metrics()
    path = tiny.write(tmp_path / "killed", task, steps=120)
    run = RunFolder(tmp_path / "killed/run")
    draw = random.Random(task)
    for _ in range(6):
        before = steps_saved(run)
        process = tiny.start(path)
        if draw.random() < 0.7:  # in training, else while it starts
            assert wait_until(lambda before=before: steps_saved(run) > before, process)
        moment = time.monotonic() + draw.uniform(0.0, end["seconds"] / 8)
        assert wait_until(lambda moment=moment: time.monotonic() > moment, process)
        kill(process)
    finish(path)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    best = "run/best/model.safetensors"
    assert (tmp_path / "killed" / best).read_bytes() == (tmp_path / "whole" / best).read_bytes()


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path, uninterrupted):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    process = tiny.start(path)
    assert wait_until(lambda: run.last_checkpoint() is not None, process)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 0
    assert not run.finished
    finish(path)
    assert weights(tmp_path) == uninterrupted


def test_a_finished_run_is_left_alone(tmp_path, capsys):
    config = load(tiny.write(tmp_path, steps=2))
    train(config)
    before = (tmp_path / "run/last/model.safetensors").stat().st_mtime_ns
    assert train(config) is not None
    assert "is finished" in capsys.readouterr().out
    assert (tmp_path / "run/last/model.safetensors").stat().st_mtime_ns == before


def test_a_run_of_another_configuration_is_refused(tmp_path):
    path = tiny.write(tmp_path, steps=2)
    train(load(path))
    with pytest.raises(UserError, match=r"train\.lr is 0\.01 there and 0\.02 here"):
        train(load(path, ["train.lr=0.02"]))
    train(load(path, ["train.lr=0.02"]), overwrite=True)


def test_a_folder_that_is_no_run_is_never_touched(tmp_path):
    path = tiny.write(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not a run's folder"):
            train(load(path), overwrite=overwrite)
    assert (tmp_path / "run/thesis.txt").read_text() == "years of work"


def _with_little_room(path, room) -> None:
    """Files may not grow beyond this: as on a full disk, writing fails half way."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    try:
        tiny.train_it(path)
    except UserError as error:
        (path.parent / "error.txt").write_text(str(error))


def run_with_little_room(path, room) -> str:
    """What the user is told."""
    import multiprocessing

    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_with_little_room, args=(path, room))
    process.start()
    process.join()
    return (path.parent / "error.txt").read_text()


def test_a_disk_filled_by_what_is_logged_is_told(tmp_path):
    path = tiny.write(tmp_path, log_every=1, save_every=100, eval_every=100, steps=100)
    prepare(load(path))  # while there is room
    message = run_with_little_room(path, 3_000)
    assert message.startswith(f"cannot write to {tmp_path / 'run'}: File too large")


def test_a_full_disk_is_told_and_leaves_the_last_good_checkpoint(tmp_path, uninterrupted):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    process = tiny.start(path)
    assert wait_until(lambda: run.last_checkpoint() is not None, process)
    kill(process)
    good = run.last_checkpoint()
    message = run_with_little_room(path, 20_000)
    assert message.startswith("cannot save to ")
    assert "intact" in message
    assert run.last_checkpoint() == good
    finish(path)
    assert weights(tmp_path) == uninterrupted
