"""Damaged run folders: reported, left out, and never a traceback."""

from __future__ import annotations

import json
import os
import random

import pytest

from linformer_kit.evidence.report.collect import collect
from linformer_kit.evidence.report.sections import sections
from linformer_kit.evidence.report.usable import usable

from .evidence import growth_records, write_records, write_run

DEEP = "[" * 100_000
DAMAGE = {
    "binary": b"\x00\xff\xfe\x89PNG\n\x01",
    "text": b"not json at all\n",
    "list": b"[1, 2]\n",
    "number": b"3\n",
    "null": b"null\n",
    "empty": b"",
    "deep": DEEP.encode(),
    "digits": b"9" * 10_000,
    "latin": '{"caf\xe9": 1}'.encode("latin-1"),
    "surrogate": b'{"metrics": {"\\ud800": 1}}\n',
    "torn": b'{"metrics": {"perplexity": ',
}
VALUES = ["text", None, True, [], {}, float("nan"), float("inf"), 10**400, -1, 1e308, [[1]], "\0"]


def shown(tmp_path):
    """What of the runs can be shown: the evidence, and the names in the table."""
    evidence = usable(collect([tmp_path / "runs"]))
    names = [
        row[0].text
        for section in sections(evidence)
        if section.name == "runs"
        for row in section.sheets[0].rows
    ]
    return evidence, names


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "evaluation.json",
        "environment.json",
        "config.yaml",
        "run.json",
        "best/config.json",
    ],
)
def test_a_damaged_file_is_reported_and_the_rest_is_shown(tmp_path, name, kind):
    write_run(tmp_path / "runs" / "good", projection="full", perplexity=10.0)
    bad = write_run(tmp_path / "runs" / "bad", projection="linear", perplexity=11.0)
    (bad / name).write_bytes(DAMAGE[kind])
    evidence, names = shown(tmp_path)
    assert "good (vanilla)" in names
    harmless = {
        ("metrics.jsonl", "empty"), ("config.yaml", "surrogate"), ("metrics.jsonl", "surrogate"),
        ("environment.json", "surrogate"), ("run.json", "surrogate"),
        ("best/config.json", "surrogate"), ("evaluation.json", "surrogate"),
    }  # fmt: skip
    if (name, kind) not in harmless:
        (told, *_) = evidence.problems
        assert str(bad / name) in told
        assert "left out" in told


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize("key", ["step", "loss", "seconds", "seconds_per_step", "validation"])
def test_a_logged_value_of_another_kind_is_left_out(tmp_path, key, value):
    run = write_run(tmp_path / "runs" / "a", projection="full", perplexity=10.0)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines.append({**lines[0], key: value})
    lines.append({**lines[-1], "validation": {"perplexity": value, "x": 1.0}})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evidence, names = shown(tmp_path)
    assert len(names) == 1
    assert len(evidence.runs[0].steps) >= 3


@pytest.mark.parametrize("value", VALUES, ids=str)
@pytest.mark.parametrize(
    "place", ["metrics", "metrics.perplexity", "part", "k", "projection", "neighbours", "cpu"]
)
def test_a_value_of_another_kind_never_ends_the_report(tmp_path, place, value):
    run = write_run(tmp_path / "runs" / "a", projection="full", perplexity=10.0)
    write_run(tmp_path / "runs" / "b", projection="linear", perplexity=10.0)
    files = {"cpu": "environment.json", "metrics": "evaluation.json", "part": "evaluation.json"}
    path = run / files.get(place.partition(".")[0], "best/config.json")
    content = json.loads(path.read_text())
    inner = content
    *parents, last = place.split(".")
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    path.write_text(json.dumps(content))
    assert len(shown(tmp_path)[1]) == 2


def test_random_changes_of_a_run_never_end_the_report(tmp_path):
    draw = random.Random(0)
    names = ["metrics.jsonl", "evaluation.json", "config.yaml", "best/config.json", "run.json"]
    write_records(tmp_path / "runs" / "other.jsonl", growth_records())
    for number in range(60):
        run = write_run(tmp_path / "runs" / f"{number}", projection="linear", perplexity=9.0)
        path = run / draw.choice(names)
        data = bytearray(path.read_bytes())
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(data[: draw.randint(1, len(data))])
    assert len(shown(tmp_path)[1]) > 30


def test_pipes_loops_and_forbidden_files_are_reported(tmp_path):
    runs = tmp_path / "runs"
    write_records(runs / "good.jsonl", growth_records())
    os.mkfifo(runs / "pipe.jsonl")
    (runs / "loop.jsonl").symlink_to(runs / "loop.jsonl")
    (runs / "nowhere.jsonl").symlink_to(runs / "not-there")
    (runs / "inside").mkdir()
    (runs / "inside" / "back").symlink_to(runs)
    (runs / "binary.jsonl").write_bytes(b"\xff\n" * 500)
    evidence = collect([runs])
    assert len(evidence.records) == len(growth_records())
    said = "\n".join(evidence.problems)
    assert "pipe.jsonl: not a regular file" in said
    assert "loop.jsonl" in said
    assert "497 more lines" in said
    assert len(evidence.problems) < 10
