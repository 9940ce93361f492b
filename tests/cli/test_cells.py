"""Benchmarks in cells from the command line: resumed, damage told, mistakes in one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from linformer_kit.cli import main
from linformer_kit.measure.records import read_records

GRID = ["bench", "grid", "--k", "8", "--dim", "16", "--heads", "2", "--tokens", "32"]
TINY = [*GRID, "--rounds", "1", "--threads", "1", "--no-memory"]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_grid_goes_on_where_it_was(capsys, tmp_path):
    out = str(tmp_path / "grid.jsonl")
    run(capsys, *TINY, "--lengths", "32", "--out", out)
    first = read_records(tmp_path / "grid.jsonl").records
    code, text, aside = run(capsys, *TINY, "--lengths", "32,64", "--out", out)
    assert code == 0
    assert "1 of 2 cells are in" in aside
    assert f"1 record added to {out}" in text
    records = read_records(tmp_path / "grid.jsonl").records
    assert records[0] == first[0]
    assert [record["cell"]["length"] for record in records] == [32, 64]
    rows = [line.split()[0] for line in text.splitlines() if line.split()[:1] in (["32"], ["64"])]
    assert rows == ["32", "64"] * 2  # the table shows what was there and what is new


def test_an_interrupted_grid_is_resumed(tmp_path):
    out = tmp_path / "grid.jsonl"
    many = ",".join(str(length) for length in range(32, 2048, 8))
    command = [sys.executable, "-c", "from linformer_kit.cli import main; main()"]
    running = subprocess.Popen(
        [*command, *TINY, "--lengths", many, "--out", out], stdout=subprocess.PIPE, text=True
    )
    while not out.exists() or out.read_bytes().count(b"\n") < 3:
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=300)
    assert running.returncode == 130
    done = read_records(out).records
    assert len(done) >= 3
    lengths = ",".join(str(record["cell"]["length"]) for record in done)
    again = subprocess.run(
        [*command, *TINY, "--lengths", lengths, "--out", out], capture_output=True, text=True
    )
    assert again.returncode == 0
    assert f"{len(done)} of {len(done)} cells are in" in again.stderr.replace("\n", " ")
    assert read_records(out).records == done


def test_a_damaged_line_is_reported_and_its_cell_measured_again(capsys, tmp_path):
    path = tmp_path / "grid.jsonl"
    run(capsys, *TINY, "--lengths", "32,64", "--out", str(path))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first[:40] + b"\n" + second + b"\n")
    code, text, aside = run(capsys, *TINY, "--lengths", "32,64", "--out", str(path))
    assert code == 0
    assert "line 1: not JSON" in aside
    assert "1 of 2 cells are in" in aside
    assert "1 record added" in text


def test_again_measures_all_once_more(capsys, tmp_path):
    out = str(tmp_path / "grid.jsonl")
    for more in ([], ["--again"]):
        run(capsys, *TINY, "--lengths", "32", "--out", out, *more)
    assert len(read_records(tmp_path / "grid.jsonl").records) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["budget", "--lengths", "32", "--k", "8", "--tokens", "64", "--shapes", "encoder"],
        ["decode", "--contexts", "32", "--no-memory"],
        ["roofline", "--lengths", "64", "--k", "8"],
        ["peers", "--lengths", "64", "--k", "16", "--peers", "linformer-kit,linformer"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_each_prints_its_table_and_keeps_its_records(capsys, tmp_path, arguments):
    sizes = ["--quick", "--dim", "32", "--heads", "2", "--rounds", "1", "--threads", "1"]
    out = str(tmp_path / "records.jsonl")
    code, text, _ = run(capsys, "bench", *arguments, *sizes, "--out", out)
    assert code == 0
    assert "━" in text
    assert "added to" in text
    assert read_records(tmp_path / "records.jsonl").records


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grid", "--lengths", "a"], "--lengths takes whole numbers"),
        (["grid", "--dim", "15", "--heads", "2"], "dim must be divisible"),
        (["budget", "--lengths", "300"], "must divide the tokens of a batch"),
        (["peers", "--peers", "nobody"], "peer must be one of"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    code, _, aside = run(capsys, "bench", *arguments)
    assert code == 2
    assert message in aside
    assert aside.count("\n") == 1
