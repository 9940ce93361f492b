"""Signals and kills at every stage of a command: one line, nothing lost, and it resumes."""

from __future__ import annotations

import signal
import time

import pytest

from linformer_kit.config.load import load
from linformer_kit.train.run import train
from linformer_kit.train.run_folder import RunFolder

from . import commands, tiny


def results(run):
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


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    train(load(tiny.write(folder)))
    return results(folder / "run")


def pause_in_step(given):
    """Pause in a step of training, before its loss is computed."""
    place, step = given
    from linformer_kit.train.trainer import RunTrainer

    compute_loss = RunTrainer.compute_loss

    def paused(self, model, *args, **kwargs):
        if model.training and self.state.global_step == step - 1:
            commands.pause(place)
        return compute_loss(self, model, *args, **kwargs)

    RunTrainer.compute_loss = paused


def start_and_pause(tmp_path, path, before, *given, words=()):
    place = tmp_path / "paused"
    command = commands.start(
        tmp_path / "log", "train", path, *words, before=before, given=(place, *given)
    )
    command.wait_for(place.exists)
    return command, place


def finish(tmp_path, *arguments):
    code, out, err = commands.run(tmp_path / "again", *arguments)
    assert (code, err) == (0, "")
    return out


# Steps 6 and 12 are evaluated, 12 is the last.
@pytest.mark.parametrize("step", [3, 6, 12])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_after_the_step_and_the_same_command_resumes_to_the_same_bits(
    tmp_path, uninterrupted, number, step
):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    command, place = start_and_pause(tmp_path, path, pause_in_step, step)
    command.send(number)
    commands.resume(place)
    assert command.wait() == 130
    assert command.err == ""
    assert command.out.splitlines()[-1].startswith(f"Stopped: saved at step {step}. ")
    assert run.last_checkpoint().name == f"checkpoint-{step}"
    assert not run.finished
    finish(tmp_path, "train", path)
    assert results(tmp_path / "run") == uninterrupted


def pause_while_saving(given):
    """Pause within a checkpoint: some of its files are there."""
    place, step = given
    from linformer_kit.train.trainer import RunTrainer

    save = RunTrainer._save_optimizer_and_scheduler

    def paused(self, output_dir):
        save(self, output_dir)
        if self.state.global_step == step:
            commands.pause(place)

    RunTrainer._save_optimizer_and_scheduler = paused


@pytest.mark.parametrize(
    ("before", "step", "kept"),
    [(pause_in_step, 5, 4), (pause_while_saving, 6, 4), (pause_while_saving, 12, 10)],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once_and_the_same_command_resumes_to_the_same_bits(
    tmp_path, uninterrupted, number, before, step, kept
):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    command, place = start_and_pause(tmp_path, path, before, step)
    command.send(number)
    time.sleep(0.05)
    command.send(number)
    assert command.wait() == 130
    assert command.err == ""
    assert command.out.splitlines()[-1].startswith(f"Stopped: saved at step {kept}. ")
    assert place.exists()  # it was left by the signal
    assert not run.finished
    place.unlink()
    finish(tmp_path, "train", path)
    assert results(tmp_path / "run") == uninterrupted


def pause_in_preparation(given):
    place, moment = given
    from linformer_kit.data import prepare

    make, write = prepare._tokenizer, prepare.RowFile.add

    def tokenizer(*args):
        commands.pause(place)
        return make(*args)

    def add(self, rows):
        def paused():
            for number, row in enumerate(rows):
                if number == 100:
                    commands.pause(place)
                yield row

        write(self, paused())

    if moment == "tokenizer":
        prepare._tokenizer = tokenizer
    else:
        prepare.RowFile.add = add


def pause_in_evaluation(given):
    (place,) = given
    from linformer_kit.evaluate import run

    load_model = run.load_pretrained

    def paused(*args):
        commands.pause(place)
        return load_model(*args)

    run.load_pretrained = paused


@pytest.mark.parametrize(
    ("before", "given"),
    [
        (pause_in_preparation, ["tokenizer"]),
        (pause_in_preparation, ["rows"]),
        (pause_in_evaluation, []),
    ],
)
def test_ctrl_c_before_and_after_training_is_one_line_and_the_same_command_goes_on(
    tmp_path, uninterrupted, before, given
):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    command, place = start_and_pause(tmp_path, path, before, *given)
    command.send(signal.SIGINT)
    assert command.wait() == 130
    assert command.err == "linformer: interrupted.\n"
    if before is pause_in_preparation:
        assert list((tmp_path / "prepared").glob("*.partial")) == []
        assert not run.path.exists()
    else:
        assert run.last.is_dir()
        assert not run.finished
    place.unlink()
    finish(tmp_path, "train", path)
    assert results(tmp_path / "run") == uninterrupted
