"""Missing permissions, as an ordinary user meets them: one line, and nothing is changed."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import sys

import pytest

from linformer_kit.runs.folder import RunFolder

from . import commands, tiny
from .commands import slow

pytestmark = pytest.mark.skipif(
    os.geteuid() == 0 and not sys.platform.startswith("linux"),
    reason="root gives up its rights by capset, which Linux has",
)


class Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class Capabilities(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


OVERRIDE = 0b1110  # DAC_OVERRIDE, DAC_READ_SEARCH and FOWNER


def as_ordinary_user(given=None):
    """Root may read and write everything: obey the permissions of files, and the umask 022."""
    os.umask(0o022)
    if os.geteuid() != 0:
        return
    system = ctypes.CDLL(None, use_errno=True)
    header, sets = Header(0x20080522, 0), (Capabilities * 2)()
    assert system.capget(ctypes.byref(header), sets) == 0
    for name, _ in Capabilities._fields_:
        setattr(sets[0], name, getattr(sets[0], name) & ~OVERRIDE)
    assert system.capset(ctypes.byref(header), sets) == 0


def snapshot(folder):
    return {
        path: (path.read_bytes() if path.is_file() else None, path.stat().st_mode)
        for path in folder.rglob("*")
        if path.suffix not in (".out", ".err")
    }


def run(tmp_path, *arguments):
    return commands.run(tmp_path / "log", *arguments, before=as_ordinary_user)


def closed(folder, mode=0o555):
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    return folder


CASES = {
    "run": (
        lambda folder: closed(folder / "run"),
        "cannot write to {0}/run: {0}/run is not writable for this user. Name another folder",
    ),
    "folder of runs": (
        lambda folder: closed(folder / "runs"),
        "cannot write to {0}/runs/run: {0}/runs is not writable for this user",
    ),
    "data": (
        lambda folder: (folder / "text.txt").chmod(0),
        "cannot read {0}/text.txt: Permission denied",
    ),
    "cache": (
        lambda folder: closed(folder / "prepared"),
        "cannot keep prepared data in {0}/prepared: Permission denied",
    ),
    "configuration": (
        lambda folder: (folder / "tiny.yaml").chmod(0),
        "{0}/tiny.yaml",
    ),
    "folder of the configuration": (
        lambda folder: folder.chmod(0o600),
        "{0}/tiny.yaml",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_may_not_be_read_or_written_is_one_line_and_nothing_is_changed(tmp_path, case):
    close, message = CASES[case]
    folder = tmp_path / "project"
    path = tiny.write(folder, steps=2)
    close(folder)
    before = snapshot(folder)
    words = ["run=" + str(folder / "runs/run")] if case == "folder of runs" else []
    code, out, err = run(tmp_path, "train", path, *words)
    assert (code, out) == (2, "")
    assert err.startswith("linformer: ")
    assert message.format(folder) in err
    assert err.count("\n") == 1
    after = snapshot(folder)
    assert before.items() <= after.items()
    new = {path.relative_to(folder).parts[0] for path in after.keys() - before.keys()}
    assert new == ({"prepared"} if case == "data" else set())  # a lock, which stays


def pause_as_ordinary_user(given):
    as_ordinary_user()
    commands.pause_in_step(given)


@pytest.mark.parametrize("place", ["checkpoints", slow("metrics.jsonl"), slow(".")])
def test_a_folder_that_is_closed_during_the_run_is_one_line_and_it_resumes(
    tmp_path, results, place
):
    path = tiny.write(tmp_path)
    folder = RunFolder(tmp_path / "run")
    paused = tmp_path / "paused"
    command = commands.start(
        tmp_path / "log", "train", path, before=pause_as_ordinary_user, given=(paused, 5)
    )
    command.wait_for(paused.exists)
    mode = (folder.path / place).stat().st_mode
    (folder.path / place).chmod(0o555 if place != "metrics.jsonl" else 0o444)
    commands.resume(paused)
    assert command.wait() == 2
    assert command.err.startswith("linformer: cannot ")
    assert "Permission denied" in command.err
    assert command.err.count("\n") == 1
    (folder.path / place).chmod(mode)
    code, _, err = run(tmp_path, "train", path)
    assert (code, err) == (0, "")
    assert commands.results(folder.path) == results


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of an ordinary user, and a copy to restore it from."""
    folder = tmp_path_factory.mktemp("finished")
    path = tiny.write(folder / "project", steps=2, eval_every=2)
    assert run(folder, "train", path)[0] == 0
    shutil.copytree(folder / "project", folder / "copy")
    return folder


@pytest.fixture
def shared(finished):
    """It may be read by everybody, and not written."""
    project = finished / "project"
    set_writable(project, True)
    shutil.rmtree(project)
    shutil.copytree(finished / "copy", project)
    set_writable(project, False)
    return project


def set_writable(folder, writable):
    if writable:  # a folder before what is in it
        folder.chmod(0o755)
        (folder / "run").chmod(0o755)
    for path in [folder, *folder.rglob("*")]:
        mode = path.stat().st_mode
        path.chmod(mode | 0o200 if writable else mode & ~0o222)


def test_a_run_that_may_only_be_read_is_evaluated_and_predicted(tmp_path, shared):
    before = snapshot(shared)
    known = RunFolder(shared / "run").evaluation()
    code, out, err = run(tmp_path, "evaluate", shared / "run")
    assert (code, err) == (0, "")
    (said,) = map(json.loads, out.splitlines())
    assert said["metrics"] == known["metrics"]
    code, out, err = run(tmp_path, "predict", shared / "run", "The old <mask>og")
    assert (code, err) == (0, "")
    assert json.loads(out)["answers"]
    code, out, err = run(tmp_path, "train", shared / "tiny.yaml")
    assert (code, err) == (0, "")
    assert "is finished" in out
    code, _, err = run(tmp_path, "train", shared / "tiny.yaml", "--overwrite")
    assert code == 2
    assert "is not writable for this user" in err
    assert snapshot(shared) == before


def test_other_scores_of_a_run_that_may_only_be_read_are_told_and_not_kept(tmp_path, shared):
    file = shared / "run/evaluation.json"
    file.write_text(file.read_text().replace('"rows": 30', '"rows": 31'))
    before = snapshot(shared)
    code, out, err = run(tmp_path, "evaluate", shared / "run")
    assert (code, err) == (0, "")
    scores, notice = map(json.loads, out.splitlines())
    assert scores["rows"] == 30
    assert notice["event"] == "not kept"
    assert snapshot(shared) == before


def test_data_of_a_run_that_may_only_be_read_is_prepared_elsewhere(tmp_path, shared):
    known = RunFolder(shared / "run").evaluation()
    (shared / "prepared").chmod(0o755)
    shutil.rmtree(shared / "prepared")
    (shared / "prepared").mkdir(mode=0o555)
    before = snapshot(shared)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code, out, err = commands.run(
        tmp_path / "log",
        "evaluate",
        shared / "run",
        before=as_ordinary_user_with,
        given={"TMPDIR": str(temporary)},
    )
    assert (code, err) == (0, "")
    notice, scores = map(json.loads, out.splitlines())
    assert notice["event"] == "temporary"
    assert scores["metrics"] == known["metrics"]
    assert snapshot(shared) == before
    assert list(temporary.iterdir()) == []


def as_ordinary_user_with(given):
    import tempfile

    os.environ |= given
    tempfile.tempdir = None  # found again
    as_ordinary_user()


@pytest.mark.parametrize(
    ("closed_file", "words"),
    [
        ("run/best/model.safetensors", ["predict", "run", "The old <mask>og"]),
        ("run/best/model.safetensors", ["evaluate", "run"]),
        ("run/best/tokenizer.json", ["predict", "run", "The old <mask>og"]),
        ("run/best/tokenizer.json", ["spectrum", "run", "--text", "text.txt", "--length", "4"]),
        ("run/best/config.json", ["spectrum", "run", "--text", "text.txt", "--length", "4"]),
        ("run/best", ["spectrum", "run", "--text", "text.txt", "--length", "4"]),
        ("run/run.json", ["train", "tiny.yaml"]),
    ],
)
def test_files_that_may_not_be_read_are_named(tmp_path, shared, closed_file, words):
    (shared / closed_file).chmod(0)
    names = ("run", "text.txt", "tiny.yaml")
    words = [str(shared / word) if word in names else word for word in words]
    code, _, err = run(tmp_path, *words)
    named = shared / closed_file / ("config.json" if closed_file == "run/best" else "")
    assert (code, err) == (2, f"linformer: cannot read {named}: Permission denied.\n")


def test_a_run_that_may_not_be_read_is_listed_with_the_reason(tmp_path, shared):
    closed(shared / "run", 0)
    code, out, err = run(tmp_path, "runs", shared)
    assert (code, err) == (0, "")
    problem = "cannot be read: Permission denied"
    assert json.loads(out) == {"run": str(shared / "run"), "problem": problem}


def test_files_of_a_run_have_the_mode_of_the_umask(shared):
    """Weights are written for their owner alone by safetensors."""
    modes = {
        path.name: oct(stat.S_IMODE(path.stat().st_mode))
        for path in (shared / "run").rglob("*")
        if path.is_file()
    }
    assert set(modes.values()) == {"0o444"}, modes  # 0o644, and then closed by the fixture


@pytest.mark.parametrize(
    "words",
    [
        ["report", "PROJECT/run", "--out", "CLOSED/report.html"],
        ["bench", "grid", "--quick", "--out", "CLOSED/records.jsonl"],
        ["bench", "growth", "--out", "CLOSED/new/records.jsonl"],
        ["compare", "PROJECT/tiny.yaml", "--vary", "model.k=4,8", "--out", "CLOSED/compared"],
    ],
    ids=lambda words: words[0],
)
def test_an_output_that_may_not_be_written_is_one_line(tmp_path, shared, words):
    folder = closed(tmp_path / "closed")
    words = [word.replace("PROJECT", str(shared)).replace("CLOSED", str(folder)) for word in words]
    code, out, err = run(tmp_path, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"linformer: cannot write {words[-1]}")
    assert "Permission denied" in err
    assert err.count("\n") == 1
    assert list(folder.iterdir()) == []
