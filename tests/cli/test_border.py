"""How a command ends: what a user can mend is one line, a bug keeps its traceback."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linformer_kit.cli import main
from linformer_kit.cli.border import ending_of, one_line
from linformer_kit.errors import UserError

from .test_main import run

LINFORMER = Path(sys.executable).with_name("linformer")


@pytest.fixture
def failing(monkeypatch):
    """Make `linformer runs` raise."""

    def fail(error: BaseException) -> None:
        def summaries(folder):
            raise error

        monkeypatch.setattr("linformer_kit.evaluate.show.summaries", summaries)

    return fail


def allocation_error() -> RuntimeError:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**14)
    return caught.value


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("the rule.\nThe remedy."), 2, "the rule. The remedy."),
        (KeyboardInterrupt(), 130, "interrupted."),
        (MemoryError(), 2, "not enough memory"),
        (MemoryError("Unable to allocate 7 TiB"), 2, "Use a smaller batch"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 2, "x: No space left on device"),
        (OSError(errno.EROFS, "Read-only file system", "x"), 2, "x: Read-only file system"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), 2, "x: Permission denied"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x"), 2, "File name too long"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 2, "No space left"),
    ],
)
def test_what_a_user_can_mend_is_one_line(capsys, tmp_path, failing, error, code, message):
    failing(error)
    ended, out, err = run(capsys, "runs", str(tmp_path))
    assert (ended, out) == (code, "")
    assert err.startswith("linformer: ")
    assert err.count("\n") == 1
    assert message in err


def test_want_of_memory_in_torch_is_one_line(capsys, tmp_path, failing):
    failing(allocation_error())
    ended, _, err = run(capsys, "runs", str(tmp_path))
    assert ended == 2
    assert err.startswith("linformer: not enough memory")
    assert "Use a smaller batch, shorter inputs or a smaller model." in err
    assert err.count("\n") == 1


def test_a_full_disk_is_found_behind_the_error_of_a_library(capsys, tmp_path, failing):
    wrapped = RuntimeError("unexpected pos 64 vs 0")
    wrapped.__context__ = OSError(errno.ENOSPC, "No space left on device")
    failing(wrapped)
    ended, _, err = run(capsys, "runs", str(tmp_path))
    assert (ended, err.count("\n")) == (2, 1)
    assert "No space left on device" in err


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), ValueError("x"), RuntimeError("x"), OSError(errno.EBADF, "Bad descriptor")],
)
def test_a_bug_keeps_its_traceback(tmp_path, failing, error):
    failing(error)
    with pytest.raises(type(error)) as caught:
        main(["runs", str(tmp_path)])
    assert caught.value is error
    assert caught.value.__context__ is None
    assert ending_of(error) is None


def test_a_closed_pipe_ends_without_a_word(tmp_path):
    code = (
        "from linformer_kit.cli import app, main\n"
        "import linformer_kit.evaluate.show as show\n"
        "show.summaries = lambda folder: [{'run': 'x' * 1000}] * 1000\n"
        f"main(['runs', {str(tmp_path)!r}])"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout.readline()
    program.stdout.close()
    assert program.stderr.read() == b""
    assert program.wait(timeout=60) == 141


def test_a_closed_pipe_that_is_seen_only_at_the_end_ends_without_a_word(tmp_path):
    """What is printed fits the buffer, so that writing fails when the program ends."""
    reader, writer = os.pipe()
    os.close(reader)
    answer = subprocess.run([LINFORMER, "--version"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert answer.stderr == b""
    assert answer.returncode in (1, 141)  # typer's own, where an option answers


def test_a_full_disk_behind_the_output_is_one_line(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        answer = subprocess.run([LINFORMER, "bench"], stdout=full, stderr=subprocess.PIPE)
    assert answer.returncode == 2
    assert answer.stderr.startswith(b"linformer: cannot read or write")
    assert answer.stderr.count(b"\n") == 1


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_bug(tmp_path, closed):
    for command, code in (("runs .", 0), ("runs none", 2), ("bench", 0)):
        answer = subprocess.run(
            ["sh", "-c", f"{LINFORMER} {command} {closed}"], capture_output=True, cwd=tmp_path
        )
        assert answer.returncode == code
        assert b"Traceback" not in answer.stderr


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_is_a_line_and_exit_code_130(tmp_path, times):
    code = (
        "import sys, time\nfrom linformer_kit.cli import main\n"
        "import linformer_kit.evaluate.show as show\n"
        "def wait(folder):\n    print('waiting', flush=True)\n    time.sleep(60)\n"
        f"show.summaries = wait\nsys.argv[1:] = ['runs', {str(tmp_path)!r}]\nmain()"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    program.stdout.readline()
    for _ in range(times):
        program.send_signal(signal.SIGINT)
        time.sleep(0.001)
    _, err = program.communicate(timeout=60)
    assert "Traceback" not in err
    assert err.count("\n") <= 1
    assert program.returncode in ((130,) if times == 1 else (130, -signal.SIGINT))


GROWTH = "bench growth --lengths 32 --k 8 --dim 16 --heads 2 --threads 1 --rounds 1 --no-full"
# As late as possible: the interpreter's own files may lie where nobody else can read them.
AS_NOBODY = (
    "import os\ncells = growth.cells\n"
    "def drop(settings):\n    os.getuid() or os.setuid(65534)\n    return cells(settings)\n"
    "growth.cells = drop\n"
)
SMALL_FILES = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"


@pytest.mark.parametrize(
    ("before", "folder", "message"),
    [
        (AS_NOBODY, "locked", "Permission denied"),
        (SMALL_FILES, "free", "File too large"),
    ],
    ids=["no permission", "no room"],
)
def test_records_that_cannot_be_written_are_one_line(tmp_path, before, folder, message):
    """As an ordinary user: root may write everywhere."""
    (tmp_path / "locked").mkdir(mode=0o555)
    (tmp_path / "free").mkdir(mode=0o777)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    out = tmp_path / folder / "records.jsonl"
    code = (
        "from linformer_kit.evidence.bench import growth\n"
        "growth.memory_result = lambda *a, **k: {'note': None}\n"
        f"{before}"
        "from linformer_kit.cli import main\n"
        f"main({[*GROWTH.split(), '--out', str(out)]!r})"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 2, answer.stderr
    assert "Traceback" not in answer.stderr
    (line,) = [line for line in answer.stderr.splitlines() if line.startswith("linformer: ")]
    assert line.startswith(f"linformer: cannot write {out}: {message}")


def test_a_name_that_is_no_text_is_printed_with_escapes(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    Path(os.fsdecode(folder)).mkdir()
    for arguments in ([b"runs", folder], [b"runs", folder + b"/none"]):
        answer = subprocess.run([LINFORMER, *arguments], capture_output=True)
        assert b"Traceback" not in answer.stderr
        assert answer.returncode in (0, 2)


def test_one_line_holds_no_line_break():
    assert len(one_line("x" * 100_000)) < 1300
    assert one_line("a\nb\r\n\x1b[31mc\u2028d\x85e") == "a b [31mc d e"
