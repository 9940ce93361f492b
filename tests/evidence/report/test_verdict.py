"""A verdict only where there is one: beyond the baseline, and beyond the spread of seeds."""

from __future__ import annotations

import random

import pytest

from linformer_kit.evidence.report.verdict import difference, groups_of, verdict

from ...compare.records import record


def said(records, metrics=("perplexity",)):
    return verdict(groups_of(records), metrics)


def seeds(variant, values, **more):
    return [record(variant, value, seed=seed, **more) for seed, value in enumerate(values)]


def test_one_seed_gives_figures_and_no_verdict():
    full = record("full", 10.0, full=True, seconds=0.2)
    (sentence,) = said([full, record("k 64", 10.1, seconds=0.1, memory=1_000_000)])
    assert sentence == (
        "- k 64: one seed, so no verdict: perplexity 10.1 against 10 (+1.0%); 2.00 x as fast a "
        "step, 50% of the memory."
    )


@pytest.mark.parametrize(("vanilla", "ours"), [(False, True), (True, False), (False, False)])
def test_no_verdict_before_both_have_left_the_baseline(vanilla, ours):
    records = [
        *seeds("full", [39.0, 39.5, 39.2], full=True, left=vanilla),
        *seeds("k 64", [10.0, 10.1, 10.2], left=ours),
    ]
    (sentence,) = said(records)
    who = "this variant" if vanilla else "vanilla"
    assert f"no verdict: {who} has not left the baseline with seed 0 (perplexity " in sentence
    assert "baseline 40)" in sentence
    assert "better" not in sentence


def test_without_a_baseline_there_is_no_verdict():
    records = [*seeds("full", [10.0, 11.0], full=True), *seeds("k 4", [20.0, 21.0], baseline=None)]
    (sentence,) = said(records)
    assert "no verdict: the baseline of this variant is not known" in sentence


def test_a_difference_within_the_spread_is_no_difference():
    records = [
        *seeds("full", [10.0, 11.0, 12.0], full=True),
        *seeds("k 64", [11.5, 10.9, 12.1]),
    ]
    (sentence,) = said(records)
    assert sentence.startswith(
        "- k 64: no difference beyond the spread of 3 seeds: perplexity 11.5 against 11 (+4.5%);"
    )


def test_a_difference_beyond_the_spread_is_told_as_better_or_worse():
    full = seeds("full", [10.0, 11.0, 12.0], full=True)
    worse = seeds("k 4", [11.0, 12.1, 13.0])
    better = seeds("k 8", [9.0, 10.1, 11.0])
    for runs, accuracy in ((full, 0.5), (worse, 0.4), (better, 0.4)):
        for run in runs:
            run["metrics"]["accuracy"] = accuracy
    low, high = said([*full, *worse, *better], ("perplexity", "accuracy"))
    assert "k 4: worse than vanilla: perplexity 12.03 against 11 (+9.4%), accuracy 0.4" in low
    assert "worse than vanilla: accuracy 0.4 against 0.5" in high
    assert "better than vanilla: perplexity 10.03 against 11 (-8.8%)" in high


def test_seeds_that_differ_for_both_alike_are_no_noise():
    easy_and_hard = [10.0, 30.0, 20.0]
    records = [
        *seeds("full", easy_and_hard, full=True),
        *seeds("k 4", [value + 1 + 0.01 * i for i, value in enumerate(easy_and_hard)]),
    ]
    assert "worse than vanilla" in said(records)[0]


def test_other_seeds_cannot_be_compared():
    records = [*seeds("full", [10.0, 11.0], full=True), *seeds("k 4", [12.0, 13.0, 14.0])]
    assert "no verdict: vanilla was trained with other seeds" in said(records)[0]


@pytest.mark.parametrize("count", [2, 3, 5, 11])
def test_noise_alone_is_rarely_a_difference(count):
    draw = random.Random(count)
    trials = 2000
    wrong = 0
    for _ in range(trials):
        ours, theirs = ([draw.gauss(10, 1) for _ in range(count)] for _ in range(2))
        wrong += difference("perplexity", ours, theirs).counts
    assert 0.03 < wrong / trials < 0.07  # a 95 % criterion is wrong in 5 %


def test_each_variant_is_judged_by_the_vanilla_of_its_kind():
    rows = [
        record(f"{kind} {n}", score, full=kind == "full", n=n)
        | {"set": {"model.projection": kind, "data.max_length": n}}
        for kind, n, score in (
            ("full", "512", 10.0),
            ("full", "2048", 5.0),
            ("linear", "512", 10.0),
            ("linear", "2048", 10.0),
            ("linear", "1024", 10.0),
        )
    ]
    short, long, alone = said(rows)
    assert "perplexity 10 against 10" in short
    assert "perplexity 10 against 5 (+100.0%)" in long
    assert "no vanilla Transformer that differs in the attention alone" in alone


def test_without_vanilla_nothing_is_judged():
    assert "No vanilla Transformer among the variants" in said([record("k 4", 1.0)])[0]


def test_runs_without_an_evaluation_are_not_judged():
    rows = [record("full", 1.0, full=True), record("k 4", 1.0)]
    assert "nothing was evaluated" in said(rows, metrics=())[0]
