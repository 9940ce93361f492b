"""`linformer bench`: measures, shows, keeps the records."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linformer_kit.cli import main
from linformer_kit.measure.records import read_records

TINY = ["--lengths", "32", "--k", "8", "--dim", "16", "--heads", "2", "--threads", "1"]


def run(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0), capsys.readouterr().out


def test_attention_prints_ratios_and_writes_records(capsys, tmp_path):
    out = tmp_path / "records.jsonl"
    code, text = run(capsys, "bench", "attention", "--quick", *TINY, "--out", str(out))
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
    code, text = run(capsys, "bench", "growth", *TINY, "--out", str(out))
    assert code == 0
    assert "times faster" in text
    assert "At 32 tokens Linformer takes" in text
    assert [record["contestant"] for record in read_records(out).records] == [
        "full",
        "linformer-kit",
    ]


def test_growth_alone(capsys, tmp_path):
    out = tmp_path / "records.jsonl"
    code, text = run(capsys, "bench", "growth", *TINY, "--no-full", "--out", str(out))
    assert code == 0
    assert "Linformer reads 32 tokens in" in text
    assert len(read_records(out).records) == 1


def test_a_missing_peer_is_named_with_the_remedy(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer_pytorch", None)
    options = ["--layers", "attention", "--modes", "inference", "--out", str(tmp_path / "r.jsonl")]
    code, text = run(capsys, "bench", "attention", "--quick", *TINY, *options)
    assert code == 0
    assert "linformer-pytorch skipped: " in text
    assert "pip install 'linformer-kit[peers]'" in text


def test_stopping_keeps_the_records_so_far(tmp_path):
    out = tmp_path / "records.jsonl"
    command = [Path(sys.executable).with_name("linformer"), "bench", "attention", "--quick", *TINY]
    many = ",".join(map(str, range(32, 4096)))
    running = subprocess.Popen(
        [*command, "--lengths", many, "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not out.exists() or not out.read_bytes():
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    text, complaint = running.communicate(timeout=60)
    assert (running.returncode, complaint) == (130, "")
    records, problems = read_records(out)
    assert records
    assert problems == []
    assert f"Stopped: {len(records)} record" in text
    assert f"kept in {out}" in text
