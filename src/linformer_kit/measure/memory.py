"""The peak memory of a piece of work, measured in a fresh process.

The peak of a process does not fall, and a child inherits its parent's peak in `ru_maxrss`. So on
Linux a fresh child warms up, prepares (builds the model and the input), resets its peak by writing
5 to /proc/self/clear_refs, does the work, and reads the new peak, VmHWM.

Elsewhere, and where clear_refs may not be written, the child falls back to how far `ru_maxrss`
rose during the work. That is too small if loading libraries had already taken more than the work
needs, so a result says by which method it came.

The work is named "module:function"; the function, called with the arguments, returns a `Work`.
`python -m linformer_kit.measure.memory` is the child: JSON specification on stdin, JSON result on
stdout.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..machine_memory import ran_out_of_memory, release_freed_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DID_NOT_FIT = "did not fit"
KILLED = -9  # the exit code of a child that the kernel ended, as it does when memory runs out


class Work(NamedTuple):
    """What to measure."""

    warm_up: Callable[[], object]  # small work of the same kind, so that libraries are loaded
    prepare: Callable[[], Callable[[], object]]  # builds what the work needs, returns the work


@dataclass(frozen=True, kw_only=True)
class PeakMemory:
    """Bytes, or the problem the work had. Neither: it ran, but this system cannot measure it."""

    work: int | None = None  # at the peak, beyond what was there when the work began
    total: int | None = None  # the same with what was prepared: weights and input
    method: str | None = None  # "VmHWM" or "ru_maxrss"
    problem: str | None = None


def peak_memory(
    target: str, arguments: Mapping[str, object], *, timeout: float = 600.0
) -> PeakMemory:
    """The peak memory of the work that `target` ("module:function") makes of the arguments.

    A child that runs out of memory gives the problem "did not fit"; one that fails in another way,
    or takes more than `timeout` seconds, a problem that says so.
    """
    specification = json.dumps({"target": target, "arguments": dict(arguments)})
    try:
        child = subprocess.run(
            [sys.executable, "-m", "linformer_kit.measure.memory"],
            input=specification,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return PeakMemory(problem=f"took more than {timeout:g} s")
    if child.returncode == KILLED:
        return PeakMemory(problem=DID_NOT_FIT)
    lines = child.stdout.splitlines()
    if child.returncode or not lines:
        complaint = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return PeakMemory(problem=f"failed with exit code {child.returncode}: {complaint}")
    return PeakMemory(**json.loads(lines[-1]))


def measure(work: Work) -> PeakMemory:
    """The peak memory of the work, in this process. Meant for a process that does nothing else."""
    try:
        work.warm_up()
        gauge = _gauge()
        if gauge is None:
            work.prepare()()
            return PeakMemory()
        _release_free_memory()
        before_preparing = gauge.now()
        run = work.prepare()
        _release_free_memory()
        before_working = gauge.now()
        gauge.reset_peak()
        run()
        peak = gauge.peak()
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        return PeakMemory(problem=DID_NOT_FIT)
    return PeakMemory(
        work=peak - before_working, total=peak - before_preparing, method=gauge.method
    )


def process_peak(device: torch.device) -> int | None:
    """The peak of this process since it started, or of its tensors on a GPU; None if not known."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    for peak in (lambda: _status("VmHWM"), _highest):
        with contextlib.suppress(OSError, ImportError):
            return peak()
    return None


class _Gauge(NamedTuple):
    """Bytes of this process: now, and at its peak since `reset_peak`."""

    method: str
    now: Callable[[], int]
    reset_peak: Callable[[], object]
    peak: Callable[[], int]


def _gauge() -> _Gauge | None:
    """The best that this system has; None if it has none."""
    clear_refs = Path("/proc/self/clear_refs")
    for gauge in (
        _Gauge(
            "VmHWM",
            lambda: _status("VmRSS"),
            lambda: clear_refs.write_text("5"),
            lambda: _status("VmHWM"),
        ),
        _Gauge("ru_maxrss", _highest, lambda: None, _highest),
    ):
        with contextlib.suppress(OSError, ImportError):
            gauge.reset_peak()
            gauge.peak()
            return gauge
    return None


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _highest() -> int:
    """The peak since the process started; it cannot be reset."""
    resource = importlib.import_module("resource")  # not on every system
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def _release_free_memory() -> None:
    """Return freed memory to the system: reusing it would hide a part of the work's peak."""
    gc.collect()
    release_freed_memory()


def _prefer_oom_kill() -> None:
    """Have the OOM killer choose this process and not its parent."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main() -> None:
    _prefer_oom_kill()
    specification = json.load(sys.stdin)
    module, _, function = specification["target"].partition(":")
    make_work = getattr(importlib.import_module(module), function)
    result = measure(make_work(**specification["arguments"]))
    # A line of its own, whatever the work has printed.
    sys.stdout.write("\n" + json.dumps(asdict(result)) + "\n")


if __name__ == "__main__":
    main()
