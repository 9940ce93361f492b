"""Retrieval of halves: what is read, and that equal halves are found."""

from __future__ import annotations

import json

import pytest
from benchmarks.retrieval import main

from ..search.conftest import WORDS, save_model


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrieval")
    model = str(save_model(folder / "model"))  # reads 24 tokens
    # Two words over and over: both halves are the same, and no two documents.
    texts = [" ".join([WORDS[n], WORDS[n + 1]] * 20) for n in range(12)] + ["the dog"]
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    base = ["--original", model, "--converted", model, "--texts", str(folder / "texts.jsonl")]
    return [*base, "--limit", "12", "--min-tokens", "30"]


def test_every_method_reads_its_share_and_finds_equal_halves(arguments, tmp_path):
    out = tmp_path / "out.jsonl"
    records = main([*arguments, "--out", str(out)])
    assert [json.loads(line) for line in out.read_text().splitlines()] == records
    by_name = {record["method"]: record for record in records}
    assert {record["documents"] for record in records} == {12}  # the short one is left out
    assert [by_name[name]["reads"] for name in by_name] == [12, 12, 24]
    assert by_name["truncated"]["share_read"] == pytest.approx(12 / 22, abs=0.05)
    assert by_name["chunks"]["share_read"] == by_name["converted"]["share_read"] == 1.0
    assert all(record["recall@1"] == 1.0 for record in records)


def test_times_and_memory_are_measured(arguments):
    records = main([*arguments, "--timing", "2", "--rounds", "2", "--methods", "chunks"])
    assert len(records[0]["seconds_a_half"]) == 2
    assert records[0]["peak_with_model"] is None or records[0]["peak_with_model"] > 0
    assert records[0]["problem"] is None
