"""The benchmarks of long sequences run at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scale_estimate

FOLDER = Path(__file__).parents[2] / "benchmarks"


def _run(script: str, *words: str) -> str:
    command = [sys.executable, str(FOLDER / script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_streamed_inference_gives_what_one_call_gives(tmp_path: Path) -> None:
    words = "--length 3000 --dim 16 --k 8 --block 512 --window 32 --threads 1 --compare --scratch"
    found = json.loads(_run("stream_memory.py", *words.split(), str(tmp_path)))
    assert found["largest_difference"] < 1e-5
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_traffic_is_the_same_for_two_lengths() -> None:
    rows = _run("parallel_traffic.py", "--ranks", "2", "--lengths", "1024,2048", "--dim", "32")
    sent: dict[str, set[str]] = {}
    for row in rows.splitlines()[2:]:
        kind, _, _, total, _ = (cell.strip() for cell in row.strip("|").split("|"))
        sent.setdefault(kind, set()).add(total)
    assert set(sent) == {"linear", "dynamic", "mean", "window", "decoder"}
    assert all(len(totals) == 1 for kind, totals in sent.items() if kind != "window")


def test_what_a_linformer_sends_does_not_grow_with_the_length() -> None:
    assert scale_estimate.linformer(10**5, 64)[2] == scale_estimate.linformer(10**8, 64)[2]
    assert scale_estimate.ring(10**8, 64)[2] == 1000 * scale_estimate.ring(10**5, 64)[2]
    assert scale_estimate.ulysses(10**6, 64) is None
