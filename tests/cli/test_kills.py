"""Commands that are killed at any change of a file: nothing is half written, and they resume."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from linformer_kit.config.load import load
from linformer_kit.measure.records import read_records
from linformer_kit.train.run import train

from ..train import commands, tiny

SIZES = ["--dim", "16", "--heads", "2", "--k", "8", "--threads", "1", "--rounds", "1"]
LENGTHS = ["--lengths", "32,64,96"]
GRID = ["bench", "grid", "--tokens", "32", "--no-memory", *SIZES, *LENGTHS]
GROWTH = ["bench", "growth", "--no-full", *SIZES, *LENGTHS]


def without_memory(given=None):
    """It is measured in processes of its own, which takes seconds."""
    from linformer_kit.evidence.bench import growth

    growth.memory_result = lambda *args, **more: {"note": None}


def die_while_appending(given):
    """Be killed with two records in the file, and this much of a third."""
    from linformer_kit.measure import records

    without_memory()
    append, count = records.RecordFile.append, []

    def dying(self, record):
        count.append(record)
        if len(count) < 3:
            append(self, record)
            return
        self._file.write((records.json.dumps(record) + "\n")[given])
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    records.RecordFile.append = dying


@pytest.mark.parametrize(
    ("written", "known"),
    [(slice(0, 0), 2), (slice(0, 8), 2), (slice(0, -100), 2), (slice(0, -1), 3), (slice(None), 3)],
)
@pytest.mark.parametrize(("command", "in_cell"), [(GRID, 3), (GROWTH, 1)], ids=["grid", "growth"])
def test_a_killed_benchmark_keeps_its_records_and_goes_on(
    tmp_path, command, in_cell, written, known
):
    path = tmp_path / "records.jsonl"
    words = [*command, "--out", path]
    code, _, _ = commands.run(tmp_path / "log", *words, before=die_while_appending, given=written)
    assert code == -signal.SIGKILL
    before, torn = read_records(path)
    assert len(before) == known
    code, _, said = commands.run(tmp_path / "again", *words, before=without_memory)
    assert code == 0
    assert "Traceback" not in said
    assert said.count("not JSON") == len(torn)
    finished = known // in_cell
    assert (f"{finished} of 3 cells: not measured again" in said) == (finished > 0)
    after = read_records(path).records
    assert after[:known] == before
    assert len(after) == known + (3 - finished) * in_cell


def die_before(given):
    """Be killed before the nth change of a name below a folder."""
    folder, number = given
    seen = []

    def counted(real):
        def changed(self, *args, **kwargs):
            if folder in (self, *self.parents):
                seen.append(self)
                if len(seen) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *args, **kwargs)

        return changed

    for name in ("mkdir", "replace", "rename", "unlink", "rmdir", "write_bytes"):
        setattr(Path, name, counted(getattr(Path, name)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs, one of them a translation, which is exported as two files."""
    folder = tmp_path_factory.mktemp("trained")
    for task in ("mlm", "translate"):
        train(load(tiny.write(folder / task, task, steps=2, eval_every=2)))
    return folder


def complete(folder):
    """The files of a folder by their names, without hidden ones, which a kill may leave."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    names = {path.relative_to(folder): path.read_bytes() for path in found}
    return {
        name: data
        for name, data in names.items()
        if not any(part.startswith(".") for part in name.parts)
    }


@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(
            ["export", "translate/run", "--to", "OUT/m.onnx"],
            6,  # one of two files has its name
            marks=pytest.mark.slow,
            id="export",
        ),
        pytest.param(["report", "mlm/run", "--out", "OUT/report.html"], 10, id="report"),
    ],
)
def test_a_killed_command_leaves_no_file_half_written(
    tmp_path, trained, monkeypatch, command, number
):
    monkeypatch.chdir(trained)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
    words = [[word.replace("OUT", str(folder)) for word in command] for folder in (whole, killed)]
    assert commands.run(tmp_path / "log", *words[0])[0] == 0
    code, _, _ = commands.run(
        tmp_path / "log", *words[1], before=die_before, given=(killed, number)
    )
    assert code == -signal.SIGKILL
    expected, found = complete(whole), complete(killed)
    assert found.keys() < expected.keys()
    assert found[Path("notes.txt")] == b"mine"
    for name, data in found.items():
        assert len(data) == len(expected[name])
    code, _, _ = commands.run(tmp_path / "log", *words[1])
    assert code == 0
    assert complete(killed).keys() == expected.keys()
