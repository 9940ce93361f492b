"""One process at a time writes to a run; a killed one leaves no lock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from filelock import FileLock

from linformer_kit.errors import UserError
from linformer_kit.runs.lock import HOLDER, LOCK, lock_run

HOLD = """
import sys, time
from pathlib import Path
from linformer_kit.runs.lock import lock_run
with lock_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_in_use_is_refused_by_name_and_a_killed_holder_is_stale(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=rf"{tmp_path} is in use by process {process.pid} on "):
        lock_run(tmp_path).__enter__()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert (tmp_path / ".lock-holder").is_file()  # left behind, and stale
    with lock_run(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock-holder").read_text()
    assert not (tmp_path / ".lock-holder").exists()


def test_a_holder_that_has_not_written_its_name_yet_is_waited_for(tmp_path):
    held = FileLock(tmp_path / LOCK)
    held.acquire()
    later = threading.Timer(0.2, (tmp_path / HOLDER).write_text, ["process 7 on elsewhere\n"])
    later.start()
    try:
        named = pytest.raises(UserError, match="is in use by process 7 on elsewhere")
        with named, lock_run(tmp_path):
            pass
    finally:
        later.join()
        held.release()
