"""Views are pivots: what they show is what the records say, whatever their order."""

from __future__ import annotations

import pytest

from linformer_kit.evidence.bench.paper import LENGTHS, TABLE_3
from linformer_kit.evidence.bench.results import GRID, GROWTH
from linformer_kit.evidence.bench.script_results import (
    BUDGET,
    PEERS,
    ROOFLINE,
    faster_peers,
    growth,
)
from linformer_kit.evidence.bench.views import Column, Lines, Results, Style, Table, add_ratio
from linformer_kit.evidence.bench.words import best_saving, grid_in_words, growth_in_words

MACHINE = {"cpu": "a CPU", "threads": 2}
SHOWN = Results(
    bench="made up",
    keys=("model", "length"),
    sizes=("dim",),
    caption="dim {dim}",
    derive=lambda records: add_ratio(
        records, "times", of="best", reference={"model": "a"}, by=("length",)
    ),
    tables=(
        Table(
            title="Times at dim {dim}",
            rows=(("n", "length"),),
            across="model",
            entry=lambda record: f"{record['best']:g}",
            columns=(
                Column("b faster", "times", "{:g}x".format, of="b"),
                Column("never", "absent", str, of="b"),
            ),
        ),
    ),
    charts=(
        Lines(
            name="times",
            title="Times",
            show="{:g} s".format,
            style=lambda record, number: Style(label=record["model"], colour="#000000"),
        ),
    ),
)


def record(model: str, length: int, best: float | None, **more) -> dict:
    common = {"bench": "made up", "dim": 8, "note": None, "machine": MACHINE}
    return {**common, "model": model, "length": length, "best": best, **more}


RECORDS = [record("a", 64, 8.0), record("b", 64, 2.0), record("a", 32, 3.0), record("b", 32, 3.0)]


def test_a_table_has_a_row_for_each_value_in_order_and_a_column_across():
    (sheet,) = SHOWN.sheets(RECORDS)
    assert (sheet.title, sheet.columns) == ("Times at dim 8", ("n", "a", "b", "b faster"))
    assert [[entry.text for entry in row] for row in sheet.rows] == [
        ["32", "3", "3", "1x"],
        ["64", "8", "2", "4x"],
    ]
    assert (sheet.caption, sheet.machine[:5]) == ("dim 8", "a CPU")


def test_a_chart_has_a_line_for_each_series_and_a_label_for_each_point():
    (chart,) = SHOWN.figures(RECORDS)
    assert [(line.name, line.x, line.y) for line in chart.lines] == [
        ("a", (32.0, 64.0), (3.0, 8.0)),
        ("b", (32.0, 64.0), (3.0, 2.0)),
    ]
    assert chart.lines[1].labels == ("b: 3 s at n = 32", "b: 2 s at n = 64")


def test_what_was_measured_again_replaces_the_old_and_a_skipped_one_does_not():
    newer = [*RECORDS, record("b", 64, 1.0), record("a", 64, None, note="skipped: too long")]
    assert [entry.text for entry in SHOWN.sheets(newer)[0].rows[1]] == ["64", "8", "1", "8x"]


def test_time_and_memory_that_were_measured_apart_are_one_result():
    memory = {**record("a", 64, None), "work": 5}
    del memory["best"]
    merged = SHOWN.select([*RECORDS, memory])
    assert [(r["best"], r["work"]) for r in merged if "work" in r] == [(8.0, 5)]


def test_the_sizes_of_which_most_was_measured_are_shown():
    others = [record("a", 64, 9.0, dim=16)]
    for records in ([*RECORDS, *others], [*others, *RECORDS]):
        assert SHOWN.sheets(records)[0].title == "Times at dim 8"


def test_records_of_other_benchmarks_show_nothing():
    others = [{**one, "bench": "other"} for one in RECORDS]
    assert SHOWN.sheets(others) == SHOWN.figures(others) == []
    for results in (GRID, GROWTH, PEERS, BUDGET, ROOFLINE):
        assert results.sheets([]) == results.figures(others) == []


def test_the_paper_stands_beside_and_below_it_is_marked():
    sizes = {"bench": "grid", "length": 512, "batch": 1, "dim": 8, "num_heads": 1}
    times = (("sdpa", None, 1.0), ("materialised", None, 1.4), ("linformer", 128, 1.0))
    records = [
        {**sizes, "model": model, "k": k, "best": best, "machine": MACHINE}
        for model, k, best in (*times, ("linformer", 256, 0.5))
    ]
    below, above = GRID.sheets(records)[0].rows[0][1:]
    assert (below.text, below.tone) == ("1.4 (1.5)", "bad")
    assert (above.text, above.tone) == ("2.8 (1.3)", "good")
    assert best_saving(records).time == 2.0
    assert grid_in_words(records) == (
        "On this machine, a Linformer layer with k = 256 reads 512 tokens 2.0 times faster than "
        "today's fused attention; against the materialised attention of 2020 it is 2.8 times "
        "faster at 512 tokens."
    )


def test_the_table_of_the_paper_is_whole():
    assert len(TABLE_3) == 2 + 3 + 4 + 5 * 5
    assert TABLE_3[65536, 2048] == (7.9, 18.0)
    assert {length for length, _ in TABLE_3} == set(LENGTHS)


def grown(length: int, model: str, best: float | None, memory: int | None, note=None) -> dict:
    sizes = {"dim": 16, "num_heads": 2, "k": 8, "batch": 1, "depth": 1}
    memory_total = None if memory is None else 2 * memory
    peaks = {"memory_work": memory, "memory_total": memory_total}
    return {**record(model, length, best, note=note), "bench": "growth", **sizes, **peaks}


def test_alone_linformer_tells_tokens_a_second():
    alone = [grown(1_048_576, "linformer-kit", 2.0, 500_000_000)]
    assert growth_in_words(alone) == (
        "Linformer reads 1,048,576 tokens in 2.00 s, 524,288 a second, in 500.0 MB of memory "
        "(1.00 GB with its weights and the input)."
    )
    (sheet,) = GROWTH.sheets(alone)
    assert sheet.rows[0][-1].text == "524,288"
    assert not any("full" in column for column in sheet.columns)


def test_the_longest_length_both_were_measured_at_is_told_in_words():
    found = [
        grown(1024, "full", 0.2, 3_000_000),
        grown(1024, "linformer-kit", 0.1, 1_000_000),
        grown(2048, "full", 4.6, 40_000_000),
        grown(2048, "linformer-kit", 0.2, 25_000_000),
        grown(4096, "full", None, None, note="skipped: about 21 s"),
        grown(4096, "linformer-kit", 0.4, 50_000_000),
    ]
    assert growth_in_words(found) == (
        "At 2,048 tokens Linformer takes 1/23 of the time and 62% of the memory of full attention."
    )
    (sheet,) = GROWTH.sheets(found)
    assert [row[1].text for row in sheet.rows] == ["200.0 ms", "4.60 s", "skipped: about 21 s"]
    assert [row[3].bar for row in sheet.rows] == [pytest.approx(2 / 23), 1.0, None]
    assert growth_in_words([]) is None


def test_a_row_in_which_we_are_behind_says_why():
    peer = {"model": "FNet", "mode": "inference", "length": 512, "dim": 512, "batch": 1}
    records = [
        {**peer, "model": "linformer-kit", "times_faster": 1.0},
        {**peer, "times_faster": 0.8},
        {**peer, "model": "Longformer", "times_faster": 2.0},
    ]
    (row,) = faster_peers(records, "times_faster", "time")
    assert row.startswith("FNet took 0.80 of our time in inference at n 512: it has no attention")
    (row,) = faster_peers([{**one, "dim": 16} for one in records], "times_faster", "time")
    assert row.endswith(
        "so small an input is mostly the calling of operations, of which ours has more"
    )


def test_growth_is_the_slowest_over_the_fastest():
    assert growth({256: 2.0, 512: 1.0, 1024: 5.0}) == 5.0


def test_the_roof_is_the_lower_of_rate_and_bandwidth():
    names = {
        "GEMM": (100, 0, 1.0),
        "copy": (0, 10, 1.0),
        "light": (10, 10, 2.0),  # 1 FLOP a byte: at most 10 a second
        "heavy": (1000, 10, 20.0),  # 100 FLOPs a byte: at most 100 a second
    }
    sizes = {"bench": "roofline", "length": 8, "k": 2, "dim": 4, "num_heads": 1, "batch": 1}
    records = [
        {**sizes, "operation": name, "flops": f, "bytes": b, "times": 2, "best": t}
        for name, (f, b, t) in names.items()
    ]
    light, heavy = ROOFLINE.select(records)
    assert light["of_roof"] == pytest.approx(0.5)
    assert light["of_gemm"] == pytest.approx(0.05)
    assert heavy["of_roof"] == heavy["of_gemm"] == pytest.approx(0.5)
    assert heavy["all"] == 40.0
