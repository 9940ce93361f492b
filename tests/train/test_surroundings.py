"""Other processes, copies, clocks and odd names around a run: it ends with the same bits."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from linformer_kit.runs.folder import RunFolder

from . import commands, tiny
from .commands import slow


def count_preparations(given):
    from linformer_kit.data import prepare

    make = prepare._make

    def counted(*args):
        (given / str(os.getpid())).touch()
        time.sleep(0.5)
        make(*args)

    prepare._make = counted


def test_two_runs_that_share_a_cold_cache_prepare_it_once(tmp_path, results):
    path = tiny.write(tmp_path)
    counts = tmp_path / "counts"
    counts.mkdir()
    runs = [
        commands.start(
            tmp_path / name,
            "train",
            path,
            f"run={tmp_path / name}",
            before=count_preparations,
            given=counts,
        )
        for name in ("first", "second")
    ]
    assert [run.wait() for run in runs] == [0, 0]
    assert [run.err for run in runs] == ["", ""]
    assert len(list(counts.iterdir())) == 1
    for name in ("first", "second"):
        assert commands.results(tmp_path / name) == results


def pause_before_the_lock(given):
    """Pause before the lock, and once more in a step."""
    place, step, step_place = given
    lock = RunFolder.lock

    def paused(folder):
        commands.pause(place)
        return lock(folder)

    RunFolder.lock = paused
    commands.pause_in_step((step_place, step))


def test_of_processes_that_start_the_same_run_at_once_one_trains(tmp_path, results):
    path = tiny.write(tmp_path)
    places = [tmp_path / f"before-{number}" for number in range(3)]
    in_step = tmp_path / "in-step"
    runs = [
        commands.start(
            tmp_path / f"log-{number}",
            "train",
            path,
            before=pause_before_the_lock,
            given=(places[number], 3, in_step),
        )
        for number in range(3)
    ]
    for run, place in zip(runs, places, strict=True):
        run.wait_for(place.exists)
    for place in places:
        commands.resume(place)
    while sum(run.process.is_alive() for run in runs) > 1:
        time.sleep(0.01)
    (winner,) = [run for run in runs if run.process.is_alive()]
    losers = [run for run in runs if run is not winner]
    assert [run.wait() for run in losers] == [2, 2]
    winner.wait_for(in_step.exists)
    commands.resume(in_step)
    assert winner.wait() == 0
    for run in losers:
        assert f"is in use by process {winner.process.pid} on " in run.err
        assert run.err.count("\n") == 1
    assert commands.results(tmp_path / "run") == results


@pytest.mark.parametrize("before", [slow(commands.pause_in_step), commands.pause_while_saving])
def test_a_copy_of_a_run_in_training_resumes(tmp_path, results, before):
    path = tiny.write(tmp_path)
    command, place = commands.start_and_pause(tmp_path, path, before, 6)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    code, out, err = commands.run(tmp_path / "again", "train", path, f"run={tmp_path / 'copy'}")
    assert (code, err) == (0, "")
    assert '"step": 4, "event": "resumed"' in out
    assert commands.results(tmp_path / "copy") == results
    commands.resume(place)
    assert command.wait() == 0
    assert commands.results(tmp_path / "run") == results


def turn_back_the_clock(given):
    """By a year, and by an hour more each time it is read."""
    real, reads = time.time, []

    def backwards():
        reads.append(1)
        return real() - 365 * 86400 - 3600 * len(reads)

    time.time = backwards


@pytest.mark.slow
def test_the_clock_may_go_backwards(tmp_path, results):
    path = tiny.write(tmp_path)
    command, _ = commands.start_and_pause(tmp_path, path, commands.pause_in_step, 7)
    command.kill()
    for file in (tmp_path / "run").rglob("*"):
        os.utime(file, (4e9, 4e9))  # in the year 2096
    code, out, err = commands.run(tmp_path / "again", "train", path, before=turn_back_the_clock)
    assert (code, err) == (0, "")
    assert '"step": 6, "event": "resumed"' in out
    assert commands.results(tmp_path / "run") == results


NAMES = [
    "a b [red]ü☃漢字[/red]",
    slow("*?[x]{y}%(z)s$HOME'\"\\<b>&amp;"),
    slow("-run"),
    slow("--overwrite"),
    slow("~"),
    slow(".saving-run"),
]


def in_folder(given):
    os.chdir(given)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed after step 6, and its configuration."""
    folder = tmp_path_factory.mktemp("killed")
    path = tiny.write(folder)
    command, _ = commands.start_and_pause(folder, path, commands.pause_in_step, 7)
    command.kill()
    return path, folder / "run"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_may_be_moved_to_any_name(tmp_path, killed, results, name):
    """Resumed and evaluated by a relative name."""
    path, run = killed
    where = tmp_path / "where"
    shutil.copytree(run, where / name)
    here = {"before": in_folder, "given": where}
    value = json.dumps(name)  # of YAML
    code, out, err = commands.run(tmp_path / "again", "train", path, f"run={value}", **here)
    assert (code, err) == (0, "")
    assert '"step": 6, "event": "resumed"' in out
    assert commands.results(where / name) == results
    assert [child.name for child in where.iterdir()] == [Path(name).parts[0]]
    code, out, err = commands.run(tmp_path / "again", "evaluate", "--", name, **here)
    assert (code, err) == (0, "")
    assert '"event": "evaluation"' in out
