"""Signals and kills at every stage of a command: one line, nothing lost, and it resumes."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from linformer_kit.config.load import load
from linformer_kit.errors import UserError
from linformer_kit.runs.folder import RunFolder
from linformer_kit.train.run import train

from . import commands, tiny
from .commands import slow


# Steps 6 and 12 are evaluated, 12 is the last.
@pytest.mark.parametrize(
    ("number", "step"),
    [
        (signal.SIGINT, 6),
        (signal.SIGTERM, 12),
        slow(signal.SIGTERM, 3),
        slow(signal.SIGHUP, 6),
    ],
)
def test_a_signal_saves_after_the_step_and_the_same_command_resumes_to_the_same_bits(
    tmp_path, results, number, step
):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    command, place = commands.start_and_pause(tmp_path, path, commands.pause_in_step, step)
    command.send(number)
    commands.resume(place)
    assert command.wait() == 130
    assert command.err == ""
    assert command.out.splitlines()[-1].startswith(f"Stopped: saved at step {step}. ")
    assert run.last_checkpoint().name == f"checkpoint-{step}"
    assert not run.finished
    commands.finish(tmp_path, "train", path)
    assert commands.results(tmp_path / "run") == results


@pytest.mark.parametrize(
    ("number", "before", "step", "kept"),
    [
        slow(signal.SIGINT, commands.pause_in_step, 5, 4),
        (signal.SIGTERM, commands.pause_while_saving, 6, 4),
        slow(signal.SIGINT, commands.pause_while_saving, 12, 10),
    ],
)
def test_a_second_signal_ends_at_once_and_the_same_command_resumes_to_the_same_bits(
    tmp_path, results, number, before, step, kept
):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    command, place = commands.start_and_pause(tmp_path, path, before, step)
    command.send(number)
    time.sleep(0.05)
    command.send(number)
    assert command.wait() == 130
    assert command.err == ""
    assert command.out.splitlines()[-1].startswith(f"Stopped: saved at step {kept}. ")
    assert place.exists()  # it was left by the signal
    assert not run.finished
    place.unlink()
    commands.finish(tmp_path, "train", path)
    assert commands.results(tmp_path / "run") == results


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
    from linformer_kit.evaluate import evaluation

    load_model = evaluation.load_pretrained

    def paused(*args):
        commands.pause(place)
        return load_model(*args)

    evaluation.load_pretrained = paused


@pytest.mark.parametrize(
    ("before", "given"),
    [
        slow(pause_in_preparation, ["tokenizer"]),
        (pause_in_preparation, ["rows"]),
        (pause_in_evaluation, []),
    ],
)
def test_ctrl_c_before_and_after_training_is_one_line_and_the_same_command_goes_on(
    tmp_path, results, before, given
):
    path = tiny.write(tmp_path)
    run = RunFolder(tmp_path / "run")
    command, place = commands.start_and_pause(tmp_path, path, before, *given)
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
    commands.finish(tmp_path, "train", path)
    assert commands.results(tmp_path / "run") == results


def pause_on_a_terminal(given):
    """The same on a terminal of its own."""
    place, step, terminal = given
    os.setsid()
    handle = os.open(terminal, os.O_RDWR)  # the first one a session opens controls it
    for number in (0, 1, 2):
        os.dup2(handle, number)
    os.close(handle)
    commands.pause_in_step((place, step))


def test_a_closed_terminal_saves_and_the_same_command_resumes_to_the_same_bits(tmp_path, results):
    path = tiny.write(tmp_path, log_every=1)
    ours, theirs = os.openpty()
    command, place = commands.start_and_pause(
        tmp_path, path, pause_on_a_terminal, 5, os.ttyname(theirs)
    )
    os.close(theirs)
    os.close(ours)
    command.wait_for(lambda: not signal_pending(command.process.pid, signal.SIGHUP))
    commands.resume(place)
    assert command.wait() == 130
    assert RunFolder(tmp_path / "run").last_checkpoint().name == "checkpoint-5"
    commands.finish(tmp_path, "train", path)
    assert commands.results(tmp_path / "run") == results


def signal_pending(pid, number):
    """Whether a signal was sent to a process that has not handled it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return bool(int(fields["ShdPnd"], 16) >> (number - 1) & 1)


def pause_with_signals_ignored(given):
    """As nohup and a shell's background jobs do."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    commands.pause_in_step(given)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path, results):
    path = tiny.write(tmp_path)
    command, place = commands.start_and_pause(tmp_path, path, pause_with_signals_ignored, 5)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGINT):
        command.send(number)
    commands.resume(place)
    assert command.wait() == 0
    assert commands.results(tmp_path / "run") == results


def test_a_thread_that_is_not_the_main_one_can_train(tmp_path, results):
    config = load(tiny.write(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, config).result() is not None
    assert commands.results(tmp_path / "run") == results


def pause_in_a_process_group(given):
    os.setpgid(0, 0)
    multiprocessing.set_start_method("fork", force=True)  # of workers
    commands.pause_in_step(given)


@pytest.mark.slow
def test_ctrl_c_reaches_the_workers_too_and_the_step_is_saved(tmp_path, results):
    """A terminal sends it to all processes of a command."""
    path = tiny.write(tmp_path, workers=2)
    command, place = commands.start_and_pause(tmp_path, path, pause_in_a_process_group, 5)
    os.killpg(command.process.pid, signal.SIGINT)
    commands.resume(place)
    assert command.wait() == 130
    assert command.err == ""
    assert command.out.splitlines()[-1].startswith("Stopped: saved at step 5. ")
    commands.finish(tmp_path, "train", path, "train.workers=0")
    assert commands.results(tmp_path / "run") == results


def test_the_hint_never_overwrites(tmp_path):
    """After --overwrite the same command would remove what was saved."""
    path = tiny.write(tmp_path / "a b")
    command, place = commands.start_and_pause(
        tmp_path, path, commands.pause_in_step, 3, words=["--overwrite", "seed=1"]
    )
    command.send(signal.SIGINT)
    commands.resume(place)
    assert command.wait() == 130
    said = "The same command without --overwrite resumes: linformer "
    (_, _, words) = command.out.splitlines()[-1].partition(said)
    assert shlex.split(words) == ["train", str(path), "seed=1"]
    assert '"step": 3, "event": "resumed"' in commands.finish(tmp_path, *shlex.split(words))


# Kills while a run's folder is made or removed.


def die_before(given):
    """Be killed before the nth change of a name in a run's folder."""
    run, number = given
    seen = []

    def counted(real):
        def changed(self, *args, **kwargs):
            if run in (self, *self.parents):
                seen.append(self)
                if len(seen) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *args, **kwargs)

        return changed

    for name in ("mkdir", "replace", "rename", "unlink", "rmdir"):
        setattr(Path, name, counted(getattr(Path, name)))


@pytest.mark.parametrize("number", [slow(1), slow(3), 4, slow(5), slow(7)])
def test_killed_while_the_folder_is_made_the_same_command_completes(tmp_path, number):
    path = tiny.write(tmp_path, steps=2, eval_every=2)
    run = tmp_path / "run"
    code, _, _ = commands.run(
        tmp_path / "log", "train", path, before=die_before, given=(run, number)
    )
    assert code == -signal.SIGKILL
    commands.finish(tmp_path, "train", path)
    assert RunFolder(run).finished


@pytest.mark.parametrize("number", [slow(4), 13, slow(28), slow(35)])
def test_killed_while_it_overwrites_the_same_command_completes(tmp_path, overwritten, number):
    run = tmp_path / "run"
    path = tiny.write(tmp_path, steps=2, eval_every=2)
    shutil.copytree(overwritten, run)
    (run / "best/notes.txt").write_text("mine")
    words = ("train", path, "seed=1", "--overwrite")
    code, _, _ = commands.run(tmp_path / "log", *words, before=die_before, given=(run, number))
    assert code == -signal.SIGKILL
    assert not RunFolder(run).finished
    commands.finish(tmp_path, *words)
    assert RunFolder(run).finished
    assert RunFolder(run).config().seed == 1
    assert (run / "best/notes.txt").read_text() == "mine"


@pytest.fixture(scope="module")
def overwritten(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overwritten")
    train(load(tiny.write(folder, steps=2, eval_every=2)))
    return folder / "run"


def test_results_without_their_configuration_are_refused(tmp_path, overwritten):
    run = tmp_path / "run"
    path = tiny.write(tmp_path, steps=2, eval_every=2)
    shutil.copytree(overwritten, run)
    (run / "evaluation.json").unlink()
    (run / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"cannot read .*config\.yaml: No such file"):
        train(load(path))


# Several processes, as torchrun starts them.


def be_a_rank(given):
    rank, port, before, *more = given
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    if before is not None:
        before(more)


def start_ranks(tmp_path, path, before=None, *given, name="rank"):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = [tmp_path / f"paused-{rank}" for rank in range(2)]
    ranks = [
        commands.start(
            tmp_path / f"{name}-{rank}",
            "train",
            path,
            before=be_a_rank,
            given=(rank, port, before, places[rank], *given),
        )
        for rank in range(2)
    ]
    if before is not None:
        for rank in range(2):
            ranks[rank].wait_for(places[rank].exists)
    return ranks, places


@pytest.fixture(scope="module")
def uninterrupted_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    ranks, _ = start_ranks(folder, tiny.write(folder))
    assert [rank.wait() for rank in ranks] == [0, 0]
    return commands.results(folder / "run")


def resume_ranks(tmp_path, path):
    ranks, _ = start_ranks(tmp_path, path, name="again")
    assert [rank.wait() for rank in ranks] == [0, 0]
    return commands.results(tmp_path / "run")


def stop_ranks(tmp_path, path, asked):
    ranks, places = start_ranks(tmp_path, path, commands.pause_in_step, 5)
    for rank in asked:
        ranks[rank].send(signal.SIGTERM)
    for place in places:
        commands.resume(place)
    assert [rank.wait() for rank in ranks] == [130, 130]
    assert [rank.err for rank in ranks] == ["", ""]
    said = "Stopped: saved at step 5. The same command resumes."
    assert ranks[0].out.splitlines()[-1] == said
    assert ranks[1].out == ""


def test_processes_stop_after_the_same_step_if_one_is_asked(tmp_path):
    stop_ranks(tmp_path, tiny.write(tmp_path), [1])


@pytest.mark.slow
@pytest.mark.parametrize("asked", [[0], [1], [1, 0]])
def test_processes_that_were_stopped_resume_to_the_same_bits(tmp_path, uninterrupted_ranks, asked):
    path = tiny.write(tmp_path)
    stop_ranks(tmp_path, path, asked)
    assert resume_ranks(tmp_path, path) == uninterrupted_ranks


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_one_of_two_processes_is_killed_the_other_ends_and_the_same_command_resumes(
    tmp_path, uninterrupted_ranks, killed
):
    path = tiny.write(tmp_path)
    ranks, places = start_ranks(tmp_path, path, commands.pause_in_step, 5)
    code, _, err = commands.run(tmp_path / "log", "train", path)
    assert code == 2
    assert f"is in use by process {ranks[0].process.pid} on " in err
    ranks[killed].kill()
    for place in places:
        commands.resume(place)
    other = ranks[1 - killed]
    assert other.wait() == 2
    assert other.err.startswith("linformer: another process of this run has ended")
    assert other.err.count("\n") == 1
    assert resume_ranks(tmp_path, path) == uninterrupted_ranks
