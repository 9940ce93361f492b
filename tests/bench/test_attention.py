"""`bench attention`: every combination is measured once, and its records say all of it."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from linformer_kit.bench.attention import AttentionBench, measure
from linformer_kit.bench.attention_table import memory_table, notes, time_table
from linformer_kit.bench.contestants import CONTESTANTS, Point

POINTS = tuple(Point(dim=16, num_heads=2, k=k, length=32) for k in (4, 8))
EVERYONE = [*CONTESTANTS, "gemm"]


def small(**options) -> AttentionBench:
    return AttentionBench(
        **{"points": POINTS, "rounds": 2, "threads": 1, "gemm_size": 32} | options
    )


def text_of(table) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


@pytest.fixture(scope="module")
def records():
    return list(measure(small()))


def test_every_point_layer_mode_and_contestant_is_measured_once(records):
    found = [tuple(r[name] for name in ("k", "layer", "mode", "contestant")) for r in records]
    assert found == [
        (k, layer, mode, contestant)
        for k in (4, 8)
        for layer in ("attention", "encoder")
        for mode in ("inference", "training", "dropout")
        for contestant in EVERYONE
    ]


def test_a_record_holds_every_round_the_sizes_and_the_machine(records):
    for record in records:
        assert len(record["seconds"]) == 2
        assert record["best"] == min(record["seconds"])
        assert record["dropout"] == (0.1 if record["mode"] == "dropout" else 0.0)
        assert (record["dim"], record["num_heads"], record["length"], record["batch"]) == (
            16,
            2,
            32,
            1,
        )
        assert record["machine"]["threads"] == 1
        assert record["keep_memory"] is False


def test_the_share_is_of_the_gemm_of_the_same_rounds(records):
    item = {record["contestant"]: record for record in records[: len(EVERYONE)]}
    ours, gemm = item["linformer-kit"], item["gemm"]
    expected = ours["flops"] / ours["best"] / (2 * 32**3 / gemm["best"])
    assert ours["share_of_gemm"] == pytest.approx(expected)
    assert gemm["share_of_gemm"] == pytest.approx(1.0)
    assert item["linformer"]["share_of_gemm"] is None


def test_the_table_has_a_row_for_each_item_and_fits_80_columns(records):
    text = text_of(time_table(records))
    rows = [line for line in text.splitlines() if line.split()[:1] in (["attention"], ["encoder"])]
    assert len(rows) == 12
    assert all(row.count("x") == 3 for row in rows)
    assert "…" not in text
    assert memory_table(records) is None


def test_a_contestant_over_the_limit_is_in_the_notes():
    left_out = small(points=POINTS[:1], layers=("encoder",), modes=("training",), limit=1e-9)
    found = list(measure(left_out))
    assert [record["best"] for record in found] == [None] * len(EVERYONE)
    told = list(notes(found))
    assert len(told) == len(EVERYONE)
    assert told[0].startswith("linformer-kit, encoder, training, n 32, k 4: left out: one run took")
    assert "-" in text_of(time_table(found))


def test_fewer_rounds_are_told(records):
    shortened = [record | {"rounds": 3} for record in records[:2]]
    assert list(notes(records)) == []
    assert list(notes(shortened + records[2:5])) == [
        "2 of 5 took over a second a run and had fewer rounds."
    ]


def test_memory_is_measured_of_training_steps():
    bench = small(
        points=POINTS[:1],
        layers=("attention",),
        modes=("inference", "training"),
        contestants=("linformer-kit", "full"),
        memory=True,
    )
    found = [record for record in measure(bench) if record["bench"] == "attention memory"]
    assert [(r["mode"], r["contestant"]) for r in found] == [
        ("training", "linformer-kit"),
        ("training", "full"),
    ]
    assert all(record["problem"] is None for record in found)
    assert "x less" in text_of(memory_table(found))


def test_a_missing_peer_is_left_out_and_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer", None)
    bench = small(points=POINTS[:1], layers=("attention",), modes=("inference",))
    assert list(bench.missing) == ["linformer"]
    assert "linformer" not in [record["contestant"] for record in measure(bench)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1: got 0"),
        ({"limit": 0}, "limit must be more than 0 seconds: got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1: got 1.0"),
        ({"layers": ("decoder",)}, "layer must be one of .* got 'decoder'"),
        ({"modes": ("train",)}, "mode must be one of .* Did you mean 'training'"),
        ({"contestants": ("full",)}, "'linformer-kit', so it must take part: got full"),
        ({"contestants": ("linformer-kit", "ful")}, "contestant must be one of .* got 'ful'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        small(**wrong)


def test_records_and_table_say_that_memory_was_kept(monkeypatch):
    monkeypatch.setattr("linformer_kit.bench.attention.keep_memory", lambda: True)
    options = {"points": POINTS[:1], "layers": ("attention",), "modes": ("inference",)}
    records = list(measure(small(keep_memory=True, **options)))
    assert all(record["keep_memory"] for record in records)
    assert "memory kept" in text_of(time_table(records))
