"""A dry run says what the mean step computes and takes, and what the largest one needs."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from linformer_kit.config.load import load
from linformer_kit.data.prepare import prepare
from linformer_kit.data.rows import Rows
from linformer_kit.measure.step import count_flops
from linformer_kit.models import LinformerForSequenceClassification
from linformer_kit.train import dry_run as rehearsal
from linformer_kit.train.dry_run import Sizes, dry_run
from linformer_kit.train.start import start_of
from linformer_kit.training.setup import collator, training_order

from . import tiny


def test_a_dry_run_tells_all_and_writes_no_run(tmp_path):
    text = dry_run(load(tiny.write(tmp_path)))
    answer, rest = text.split("\n\n", 1)
    assert re.fullmatch(r"takes about .+ and .+B of memory: fits into the .+ GB of this .+", answer)
    told, configuration = rest.split("\n\n")
    for word in ("parameters", "FLOPs a step", "memory", "time"):
        assert word in told
    assert configuration.startswith("task: mlm\n")
    assert not re.search(r"(?<![\d.])0(\.0+)? ([GM]B|epochs|times|s\b|seconds|ms)", text)
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_what_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "total_memory", lambda: 10**6)
    text = dry_run(load(tiny.write(tmp_path)))
    assert "does NOT fit into the 1.0 MB of this machine" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("task", "changes", "told"),
    [
        ("mlm", [], ["2.0 hours for 2 evaluations of 8 rows", "4.0 hours for the 30 rows"]),
        (
            "mlm",
            ["train.eval_every=12", "evaluate.max_test_examples=1"],
            ["60.0 minutes for 1 evaluation of 8 rows", "60.0 minutes for the 1 row that"],
        ),
        ("mlm", ["data.test_share=0.0"], ["2.0 hours for", "60.0 minutes for the 8 rows that"]),
        ("mlm", ["data.test_share=0.0", "data.validation_share=0.0"], []),
        (
            "translate",
            [],
            ["2.0 hours for", "6.0 hours for the 20 rows that are scored at the end"],
        ),
    ],
)
def test_evaluations_are_part_of_the_time(tmp_path, monkeypatch, task, changes, told):
    """An hour for each batch of 8 rows, and one for its translation."""
    steps = {rehearsal.STEPS: 1e-3}
    monkeypatch.setattr(
        rehearsal, "seconds_of", lambda run, times=1: (run(), steps.get(times, 3600.0))[1]
    )
    answer, lines, _ = dry_run(load(tiny.write(tmp_path, task), changes)).split("\n\n")
    for line in told:
        assert line in lines
    assert ("evaluation" in lines) == ("scored" in lines) == bool(told)
    hours = sum(float(line.split()[0]) / (60 if "minutes" in line else 1) for line in told)
    assert answer.startswith(f"takes about {hours:.1f} hours" if told else "takes about ")


def test_a_dry_run_of_long_rows_extends_what_cut_rows_take(tmp_path, monkeypatch):
    path = tiny.write(tmp_path, block_rows=8)
    as_they_are = dry_run(load(path))
    monkeypatch.setattr(rehearsal, "LENGTHS", (4, 8))
    text = dry_run(load(path))
    assert "of 32 positions follow from steps on rows cut to 4 and 8" in text
    assert "follow from" not in as_they_are
    assert "GB in all" in text or "MB in all" in text


def test_costs_are_extended_along_a_line():
    def taken(length: int) -> rehearsal.Measured:
        return rehearsal.Measured(0.5 + 2 * length, length, 7 * length, 100 + 3 * length, None)

    assert taken(64).extended(taken(32), 10.0) == taken(640)


def write_mixed(folder, **train):
    """Texts of 3 to 300 characters, half of them the shortest: batches by length differ widely."""
    path = tiny.write(folder, "classify", steps=100, **train)
    lengths = [3] * 100 + list(range(3, 303, 3))
    (folder / "mixed.jsonl").write_text(
        "".join(
            json.dumps({"text": f"{number:03}" + "ab" * (length // 2), "label": str(length % 2)})
            + "\n"
            for number, length in enumerate(lengths)
        )
    )
    data = [f"data.train={folder / 'mixed.jsonl'}", "data.text=text", "data.label=label"]
    return load(path, [*data, "data.max_length=320"])


def test_flops_are_those_of_the_mean_step_of_the_training(tmp_path):
    config = write_mixed(tmp_path)
    said = float(re.search(r"FLOPs a step +([0-9.e+]+)", dry_run(config))[1])
    prepared = prepare(config)
    tokenizer = prepared.tokenizer()
    model = start_of(config, prepared, tokenizer).model.train()
    rows = Rows(prepared.part("train"))
    batches = [collator(config, tokenizer)(rows.__getitems__(d)) for d in _steps(config, rows)]
    assert len({batch["input_ids"].shape[1] for batch in batches}) > 5
    with count_flops() as counter:
        for batch in batches:
            model(**batch).loss.backward()
    assert said == pytest.approx(counter.get_total_flops() / len(batches), rel=0.1)


def _steps(config, rows):
    order = training_order(config, rows, 1)
    return [order.step(number) for number in range(order.steps)]


def test_memory_is_that_of_the_largest_step(tmp_path, monkeypatch):
    config = write_mixed(tmp_path)
    shapes = []
    forward = LinformerForSequenceClassification.forward
    monkeypatch.setattr(
        LinformerForSequenceClassification,
        "forward",
        lambda self, *a, **b: shapes.append(b["input_ids"].numel()) or forward(self, *a, **b),
    )
    inside = []

    def peak(device, step, *, warm):
        shapes.clear()
        step()
        inside.extend(shapes)

    monkeypatch.setattr(rehearsal, "step_peak", peak)
    dry_run(config)
    rows = Rows(prepare(config).part("train"))
    lengths = rows.column("length")
    positions = [
        len(draws) * max(lengths[row] for row, _ in draws) for draws in _steps(config, rows)
    ]
    assert inside == [max(positions[: rehearsal.LOOKED_AT])]


def test_timed_steps_are_spread_over_the_sizes():
    sizes = Sizes(np.array([5, 900, 1, 2, 400, 3, 4, 100, 6]))
    assert sizes.largest == 1
    assert [sizes.positions[number] for number in sizes.spread(3)] == [2, 5, 400]
    assert sizes.factor([0, 7]) == pytest.approx(sizes.positions.mean() / 52.5)


def test_steps_of_one_size_are_counted_once():
    sizes = Sizes(np.array([64, 64, 64, 64]))
    assert not sizes.differ
    assert sizes.factor(sizes.spread(3)) == 1
