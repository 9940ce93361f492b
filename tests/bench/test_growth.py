"""`bench growth`: lengths in order, full attention skipped aloud, numbers in words."""

from __future__ import annotations

import pytest
from rich.console import Console

from linformer_kit.bench.contestants import Point
from linformer_kit.bench.growth import GrowthBench, measure, measured_already
from linformer_kit.bench.growth_table import growth_table, in_words

MACHINE = {"cpu": "a CPU", "threads": 2}


def points(*lengths: int) -> tuple[Point, ...]:
    return tuple(Point(dim=16, num_heads=2, k=8, length=length) for length in lengths)


def record(length: int, contestant: str, best: float | None, memory: int | None, note=None):
    return {
        "length": length,
        "contestant": contestant,
        "best": best,
        "memory_work": memory,
        "memory_total": None if memory is None else 2 * memory,
        "note": note,
        "dim": 16,
        "num_heads": 2,
        "k": 8,
        "batch": 1,
        "depth": 1,
        "machine": MACHINE,
    }


def text_of(table) -> str:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_full_attention_over_its_budget_is_skipped_and_linformer_goes_on():
    bench = GrowthBench(points=points(16, 64), rounds=1, threads=1, budget=1e-9)
    found = list(measure(bench))
    assert [(r["length"], r["contestant"]) for r in found] == [
        (16, "full"),
        (16, "linformer-kit"),
        (64, "full"),
        (64, "linformer-kit"),
    ]
    first_full, first_ours, second_full, second_ours = found
    assert first_full["best"] is not None  # nothing to estimate from yet
    assert second_full["best"] is None
    assert second_full["note"].startswith("skipped: about ")
    for ours in (first_ours, second_ours):
        assert ours["best"] > 0
        assert ours["memory_total"] > 0
    assert "skipped" in text_of(growth_table(found))


def test_a_length_with_its_records_is_not_measured_again():
    short = GrowthBench(points=points(16), rounds=1, threads=1)
    bench = GrowthBench(points=points(16, 32), rounds=1, threads=1)
    first = list(measure(short))
    known = measured_already(bench, [*first, {"bench": "grid"}])
    assert known == first
    assert [r["length"] for r in measure(bench, known)] == [32, 32]
    assert list(measure(short, known)) == []
    assert measured_already(bench, first[:1]) == []  # stopped between the two contestants
    for other in ({"rounds": 2}, {"budget": 1.0}, {"threads": 2}, {"seed": 1}):
        settings = {"rounds": 1, "threads": 1, **other}
        assert measured_already(GrowthBench(points=points(16), **settings), first) == []


def test_what_is_known_of_full_attention_says_what_to_skip():
    bench = GrowthBench(points=points(16, 64), rounds=1, threads=1, budget=1e-9)
    known = measured_already(bench, list(measure(bench))[:2])
    full, ours = measure(bench, known)
    assert full["note"].startswith("skipped: about ")
    assert ours["best"] > 0


def test_alone_linformer_tells_tokens_a_second():
    alone = [record(1_048_576, "linformer-kit", 2.0, 500_000_000)]
    assert in_words(alone) == (
        "Linformer reads 1,048,576 tokens in 2.00 s, 524,288 a second, in 500.0 MB of memory "
        "(1.00 GB with its weights and the input)."
    )
    text = text_of(growth_table(alone))
    assert "524,288" in text
    assert "full" not in text


def test_the_longest_length_both_were_measured_at_is_told_in_words():
    found = [
        record(1024, "full", 0.2, 3_000_000),
        record(1024, "linformer-kit", 0.1, 1_000_000),
        record(2048, "full", 4.6, 40_000_000),
        record(2048, "linformer-kit", 0.2, 25_000_000),
        record(4096, "full", None, None, note="skipped: about 21 s"),
        record(4096, "linformer-kit", 0.4, 50_000_000),
    ]
    assert in_words(found) == (
        "At 2,048 tokens Linformer takes 1/23 of the time and 62% of the memory of full attention."
    )


def test_the_table_fits_80_columns_and_shows_what_was_skipped():
    found = [
        record(512, "full", 0.2, 3_000_000),
        record(512, "linformer-kit", 0.1, 1_000_000),
        record(32768, "full", None, None, note="skipped: about 21 s"),
        record(32768, "linformer-kit", 10.4, 1_050_000_000),
    ]
    text = text_of(growth_table(found))
    assert "…" not in text
    assert "2.00x" in text
    assert "3.00x" in text
    assert "skipped" in text
    assert "21 s" in text


def test_nothing_measured_is_said():
    assert in_words([]) == "Nothing was measured."
    assert text_of(growth_table([]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1: got 0"),
        ({"budget": -1.0}, "budget must be more than 0 seconds: got -1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        GrowthBench(points=points(16), **wrong)
