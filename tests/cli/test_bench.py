"""`linformer bench`: measures, shows, keeps the records, resumes; mistakes are one line."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from linformer_kit.cli import main
from linformer_kit.measure.records import read_records

TINY = ["--lengths", "32", "--k", "8", "--dim", "16", "--heads", "2", "--threads", "1"]
GRID = ["bench", "grid", "--k", "8", "--dim", "16", "--heads", "2", "--tokens", "32"]
GRID += ["--rounds", "1", "--threads", "1", "--no-memory"]
COMMAND = [sys.executable, "-c", "from linformer_kit.cli import main; main()"]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_attention_prints_ratios_and_writes_records(capsys, tmp_path):
    out = tmp_path / "records.jsonl"
    code, text, _ = run(capsys, "bench", "attention", "--quick", *TINY, "--out", str(out))
    assert code == 0
    assert "linformer-kit" in text
    rows = [line for line in text.splitlines() if line.split()[:1] in (["attention"], ["encoder"])]
    assert len(rows) == 6
    assert all(row.rstrip().endswith("%") and row.count("x") == 3 for row in rows)
    records, problems = read_records(out)
    assert problems == []
    assert len(records) == 6 * 5
    assert f"30 records added to {out}" in text


def test_growth_prints_a_table_a_sentence_and_writes_records(capsys, tmp_path):
    out = tmp_path / "records.jsonl"
    code, text, _ = run(capsys, "bench", "growth", *TINY, "--out", str(out))
    assert code == 0
    assert "█" in text
    assert "At 32 tokens Linformer takes" in text
    assert [record["model"] for record in read_records(out).records] == ["full", "linformer-kit"]
    code, text, _ = run(capsys, "bench", "growth", *TINY, "--no-full", "--out", str(out))
    assert "Linformer reads 32 tokens in" in text
    assert "0 records added" in text


def test_decode_prints_its_table(capsys, tmp_path):
    sizes = ["--contexts", "32", "--dim", "16", "--heads", "2", "--rounds", "1", "--no-memory"]
    out = str(tmp_path / "records.jsonl")
    code, text, _ = run(capsys, "bench", "decode", "--quick", *sizes, "--out", out)
    assert code == 0
    assert "One more token" in text
    assert "2 records added to" in text


def test_a_missing_package_is_named_with_the_remedy(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer_pytorch", None)
    options = ["--layers", "attention", "--modes", "inference", "--out", str(tmp_path / "r.jsonl")]
    code, text, _ = run(capsys, "bench", "attention", "--quick", *TINY, *options)
    assert code == 0
    assert "linformer-pytorch skipped: " in text
    assert "pip install 'linformer-kit[peers]'" in text


def test_an_interrupted_grid_keeps_its_records_and_is_resumed(tmp_path):
    out = tmp_path / "grid.jsonl"
    many = ",".join(str(length) for length in range(32, 2048, 8))
    running = subprocess.Popen(
        [*COMMAND, *GRID, "--lengths", many, "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not out.exists() or out.read_bytes().count(b"\n") < 9:
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    text, complaint = running.communicate(timeout=300)
    assert (running.returncode, complaint) == (130, "")
    done, problems = read_records(out)
    assert problems == []
    assert f"Stopped: {len(done)} record" in text
    assert f"kept in {out}" in text
    whole = [n for n in {r["length"] for r in done} if sum(r["length"] == n for r in done) == 3]
    assert len(whole) >= 2
    again = subprocess.run(
        [*COMMAND, *GRID, "--lengths", ",".join(map(str, whole)), "--out", out],
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0
    said = again.stderr.replace("\n", " ")
    assert f"{len(whole)} of {len(whole)} cells: not measured again" in said
    assert read_records(out).records == done


def test_a_second_run_measures_what_is_left_and_shows_all(capsys, tmp_path):
    path = tmp_path / "grid.jsonl"
    run(capsys, *GRID, "--lengths", "32", "--out", str(path))
    first = read_records(path).records
    code, text, aside = run(capsys, *GRID, "--lengths", "32,64", "--out", str(path))
    assert code == 0
    assert "1 of 2 cells: not measured again" in aside
    assert f"3 records added to {path}" in text
    records = read_records(path).records
    assert records[:3] == first
    assert [record["length"] for record in records] == [32] * 3 + [64] * 3
    rows = [line.split()[0] for line in text.splitlines() if line.split()[:1] in (["32"], ["64"])]
    assert rows == ["32", "64"] * 2  # the table shows what was there and what is new
    run(capsys, *GRID, "--lengths", "32", "--out", str(path), "--again")
    assert len(read_records(path).records) == 9


def test_a_damaged_line_is_reported_and_its_cell_measured_again(capsys, tmp_path):
    path = tmp_path / "grid.jsonl"
    run(capsys, *GRID, "--lengths", "32,64", "--out", str(path))
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first[:40] + b"\n" + b"".join(others))
    code, text, aside = run(capsys, *GRID, "--lengths", "32,64", "--out", str(path))
    assert code == 0
    assert "line 1: not JSON" in aside
    assert "1 of 2 cells: not measured again" in aside
    assert "3 records added" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["grid", "--lengths", "a"], "--lengths takes whole numbers"),
        (["grid", "--dim", "15", "--heads", "2"], "dim must be divisible"),
        (["attention", "--contestants", "nobody"], "models must be one of"),
        (["peers"], "python -m benchmarks.peers"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    code, _, aside = run(capsys, "bench", *arguments)
    assert code == 2
    assert message in aside
    assert aside.count("\n") == 1
