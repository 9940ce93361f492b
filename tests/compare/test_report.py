"""The table of a comparison, its summaries and its plots."""

from __future__ import annotations

import io
import statistics

import matplotlib.image
import pytest

from linformer_kit.compare.plots import ordered, plot_names, plots
from linformer_kit.compare.report import report, spread, summaries
from linformer_kit.evidence.report.verdict import groups_of

from .records import record


def test_seconds_of_a_curve_are_those_of_steps_timed_in_turn():
    slowed = record("a", 4.0, curve=[{"step": 10, "seconds": 99.0, "perplexity": 4.0}])
    (curves, *_) = plots(groups_of([{**slowed, "step_seconds": 0.5}]))
    over_steps, over_time = curves.charts[:2]
    assert (over_steps.lines[0].x, over_time.lines[0].x) == ((10,), (5.0,))


def test_the_table_has_parameters_memory_and_the_spread_of_seeds():
    rows = [
        record("full", 10.0, full=True),
        *(record("k 4", value, seed=seed) for seed, value in enumerate((11.0, 12.0, 14.0))),
    ]
    text, _ = report(rows, ["lr 1e-3 is the same"])
    lines = text.splitlines()
    assert "| variant | perplexity | parameters | in E and F | peak memory | time a step |" in lines
    assert "| full | 10 | 1,000 | 0 | 2.0 MB | 1.00 s |" in lines
    assert "| k 4 | 12.33 ± 1.5 | 1,000 | 100 | 2.0 MB | 1.00 s |" in lines
    assert "- lr 1e-3 is the same" in lines
    assert "how often each token occurs: perplexity 40" in text


def test_spread_is_mean_and_standard_deviation():
    values = [1.0, 2.0, 4.0]
    assert spread(values) == f"{statistics.mean(values):.4g} ± {statistics.stdev(values):.2g}"
    assert spread([1.5]) == "1.5"
    assert spread([]) == "-"


def test_summaries_keep_the_extremes():
    rows = [record("k 4", value, seed=seed) for seed, value in enumerate((11.0, 12.0, 14.0))]
    (summary,) = summaries(rows)
    assert summary["seeds"] == [0, 1, 2]
    assert summary["metrics"]["perplexity"]["min"] == 11.0
    assert summary["metrics"]["perplexity"]["max"] == 14.0


@pytest.mark.parametrize(
    ("key", "values", "order"),
    [
        (
            "model.sharing",
            ["layerwise", "none", "kv", "headwise"],
            ["none", "headwise", "kv", "layerwise"],
        ),
        ("model.projection", ["mean", "full", "linear"], ["linear", "mean", "full"]),
        ("model.k", ["128", "16", "64", "16"], ["16", "64", "128"]),
        ("train.lr", ["1e-3", "5e-4"], ["5e-4", "1e-3"]),
        ("tokenizer.kind", ["word", "bpe", "byte"], ["word", "bpe", "byte"]),
        ("model.k", ["[8,4]", "[4,4]"], ["[8,4]", "[4,4]"]),
    ],
)
def test_values_are_ordered_by_size_by_meaning_or_as_given(key, values, order):
    assert ordered(key, values) == order


def varied(key, values, **more):
    return [
        record(f"{key} {value}", 10.0 + place, **more) | {"set": {key: value}}
        for place, value in enumerate(values)
    ]


def test_plots_are_drawn_of_every_key_that_was_varied():
    rows = [
        record("full", 10.0, full=True) | {"set": {"model.projection": "full"}},
        *(
            record(f"k {k}, {sharing}", 11.0, seed=seed)
            | {"set": {"model.projection": "linear", "model.k": k, "model.sharing": sharing}}
            for k in ("8", "16")
            for sharing in ("none", "kv")
            for seed in (0, 1)
        ),
    ]
    _, pictures = report(rows)
    assert set(pictures) == {"curves.png", "over-k.png", "over-sharing.png"}
    assert set(pictures) <= set(plot_names(["model.projection", "model.k", "model.sharing"]))
    for data in pictures.values():
        assert matplotlib.image.imread(io.BytesIO(data)).std() > 0.01  # not a blank picture


@pytest.mark.parametrize("value", ["$x", r"$\frac{", "_hidden", "日本 🙂", "<b>|`", "%{x}", "a{}b"])
def test_any_value_can_be_drawn_and_tabulated(value):
    text, pictures = report(varied("data.options.some/key", [value, f"{value} 2"]))
    assert set(pictures) == {"curves.png", "over-some-key.png"}
    assert set(pictures) <= set(plot_names(["data.options.some/key"]))
    rows = [line for line in text.splitlines() if line.startswith("| data")]
    assert len(rows) == 2
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)
    assert "<b>" not in text


def test_runs_that_were_not_evaluated_have_a_table_without_plots():
    text, pictures = report([record("a", 1.0, metrics={}, curve=[], part=None)])
    assert pictures == {}
    assert "| a |" in text
