"""The files of Long Range Arena's tasks: lengths, values, and parts that share nothing."""

from __future__ import annotations

import json

import pytest
from benchmarks.long_range_arena import listops_parts, main, text_parts

from linformer_kit.data.builtin.listops import evaluate


def test_listops_parts_have_the_lengths_of_the_task_and_right_values():
    parts = listops_parts({"short": 20, "middle": 3, "long": 3}, held_out=3)
    lengths = {name: [len(r["text"].split()) for r in rows] for name, rows in parts.items()}
    assert [len(parts[name]) for name in ("train", "validation", "test")] == [26, 3, 3]
    assert all(5 < n < 120 for n in lengths["train"][:20])
    assert all(119 < n < 501 for n in lengths["train"][20:23])
    for held_out in (lengths["train"][23:], lengths["validation"], lengths["test"]):
        assert all(500 < n < 2000 for n in held_out)
    records = [record for rows in parts.values() for record in rows]
    assert len({record["text"] for record in records}) == len(records)
    assert all(evaluate(record["text"]) == int(record["label"]) for record in records)
    assert listops_parts({"short": 20, "middle": 3, "long": 3}, held_out=3) == parts


def test_reviews_are_cut_by_their_text_and_no_file_is_replaced(tmp_path, capsys):
    reviews = tmp_path / "reviews.jsonl"
    rows = [{"text": f"review {i}", "label": i % 2, "rating": 3} for i in range(200)]
    reviews.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts = text_parts(reviews)
    assert sorted(r["text"] for part in parts.values() for r in part) == sorted(
        row["text"] for row in rows
    )
    assert len(parts["train"]) > 5 * len(parts["test"]) > 0
    reviews.write_text("".join(json.dumps(row) + "\n" for row in rows[:100]))
    kept = {record["text"] for record in text_parts(reviews)["test"]}
    assert kept <= {record["text"] for record in parts["test"]}

    command = ["text", str(tmp_path / "out"), "--reviews", str(reviews)]
    main(command)
    written = (tmp_path / "out/test.jsonl").read_text()
    with pytest.raises(SystemExit) as refused:
        main(command)
    assert refused.value.code == 2
    assert "left alone" in capsys.readouterr().err
    assert (tmp_path / "out/test.jsonl").read_text() == written
