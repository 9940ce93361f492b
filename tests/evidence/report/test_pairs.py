"""Only runs that are equal in everything but the attention are compared."""

from __future__ import annotations

import json

import pytest

from linformer_kit.evidence.report.collect import collect
from linformer_kit.evidence.report.pairs import in_words
from linformer_kit.evidence.report.sections import answer, sections

from .evidence import write_comparison, write_run


def trained(tmp_path):
    return in_words(collect([tmp_path]).runs)


@pytest.mark.parametrize(
    "change",
    [
        {"train__steps": 60},
        {"train__lr": 0.02},
        {"data__train": "other.txt"},
        {"data__max_length": 64},
        {"tokenizer": {"vocab_size": 300}},
        {"model__hidden_size": 32},
        {"model__neighbours": 5},
        {"task": "classify"},
        {"seed": 1},
        {"data": "another digest"},
    ],
)
def test_runs_that_differ_in_anything_else_are_not_compared(tmp_path, change):
    write_run(tmp_path / "vanilla", projection="full", perplexity=10.0)
    write_run(tmp_path / "linformer", projection="linear", perplexity=9.7, **change)
    assert trained(tmp_path) is None
    _, sentence, _ = answer(collect([tmp_path]))
    assert "was not measured: run `linformer compare`" in sentence
    (section,) = sections(collect([tmp_path]))
    if "seed" not in change and "data" not in change:
        assert "differ in more than the attention" in section.lead


@pytest.mark.parametrize(
    "change",
    [
        {"model__k": 16},
        {"model__sharing": "kv"},
        {"data__cache": "elsewhere"},
        {"train__threads": 2},
        {"train__sequence_parallel": 2},
        {"train__scratch": "elsewhere"},
        {"run": "moved"},
    ],
)
def test_the_attention_and_places_of_files_may_differ(tmp_path, change):
    write_run(tmp_path / "vanilla", projection="full", perplexity=10.0)
    write_run(tmp_path / "linformer", projection="linear", perplexity=9.7, **change)
    assert "the Linformer has perplexity 9.7 and the vanilla Transformer 10" in trained(tmp_path)


@pytest.mark.parametrize("name", ["config.yaml", "evaluation.json", "best/config.json"])
def test_a_run_of_which_too_little_is_known_is_not_compared(tmp_path, name):
    vanilla = write_run(tmp_path / "vanilla", projection="full", perplexity=10.0)
    write_run(tmp_path / "linformer", projection="linear", perplexity=9.7)
    (vanilla / name).unlink()
    assert trained(tmp_path) is None


def test_an_evaluation_on_changed_data_is_not_compared(tmp_path):
    vanilla = write_run(tmp_path / "vanilla", projection="full", perplexity=10.0)
    write_run(tmp_path / "linformer", projection="linear", perplexity=9.7)
    evaluation = json.loads((vanilla / "evaluation.json").read_text())
    (vanilla / "evaluation.json").write_text(json.dumps({**evaluation, "data_changed": True}))
    assert trained(tmp_path) is None


def test_a_run_that_has_not_left_the_baseline_is_not_judged(tmp_path):
    home = tmp_path / "compare"
    runs = [
        write_run(home / "full", projection="full", perplexity=39.0),
        write_run(home / "linear", projection="linear", perplexity=38.0),
    ]
    write_comparison(home, runs, left=False)
    behind = "the vanilla Transformer has not left the baseline (perplexity 39, baseline 40)"
    assert trained(tmp_path).endswith(f"no verdict: {behind}.")


def seeds(home, ours, theirs):
    runs = []
    for seed, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        digest = f"split {seed}"  # a seed has a split of its own
        common = {"seed": seed, "data": digest}
        runs.append(write_run(home / f"f{seed}", projection="full", perplexity=other, **common))
        runs.append(write_run(home / f"l{seed}", projection="linear", perplexity=mine, **common))
    return runs


def test_a_difference_beyond_the_seeds_is_told(tmp_path):
    home = tmp_path / "compare"
    write_comparison(home, seeds(home, [13.0, 14.0, 15.1], [10.0, 11.0, 12.0]))
    assert trained(tmp_path) == (
        "Trained side by side with 3 seeds, the Linformer is 28% worse than the vanilla "
        "Transformer (perplexity 14.03 against 11), at 100% of the time a step."
    )


def test_a_difference_within_the_seeds_is_none(tmp_path):
    home = tmp_path / "compare"
    write_comparison(home, seeds(home, [10.5, 10.9, 12.1], [10.0, 11.0, 12.0]))
    assert "differs by no more than the spread of the seeds from the vanilla" in trained(tmp_path)


def test_without_a_baseline_seeds_give_no_verdict(tmp_path):
    seeds(tmp_path / "compare", [13.0, 14.0, 15.1], [10.0, 11.0, 12.0])
    assert "no verdict: their baseline is not known" in trained(tmp_path)


def test_the_best_of_several_linformers_is_said_to_be(tmp_path):
    write_run(tmp_path / "vanilla", projection="full", perplexity=10.0)
    for k, perplexity in ((4, 12.0), (8, 11.0), (16, 13.0)):
        write_run(tmp_path / f"k{k}", projection="linear", perplexity=perplexity, model__k=k)
    assert "the best of 3 Linformers has perplexity 11 and" in trained(tmp_path)


def test_steps_timed_in_turns_count_more_than_logged_ones(tmp_path):
    home = tmp_path / "compare"
    for projection, seconds in (("full", 2.0), ("linear", 0.5)):
        write_run(home / projection, projection=projection, perplexity=10.0, seconds=1.0)
        write_comparison(home / projection, [home / projection], step_seconds=seconds)
    records = "".join((home / name / "records.jsonl").read_text() for name in ("full", "linear"))
    (home / "records.jsonl").write_text(
        records.replace("elsewhere/full", "elsewhere/compare").replace(
            "elsewhere/linear", "elsewhere/compare"
        )
    )
    assert "at 25% of the time a step" in trained(tmp_path)


def test_times_of_different_machines_are_not_compared(tmp_path):
    write_run(tmp_path / "vanilla", projection="full", perplexity=10.0)
    other = write_run(tmp_path / "linformer", projection="linear", perplexity=9.7, seconds=0.5)
    (other / "environment.json").write_text(json.dumps({"cpu": "another", "threads": 2}))
    assert "of the time a step" not in trained(tmp_path)


def test_a_causal_model_is_vanilla_by_its_causal_attention(tmp_path):
    for name, attention in (("full", "full"), ("slots", None)):
        folder = write_run(
            tmp_path / name, projection="linear", perplexity=10.0, task="clm", model__k=8,
            model__causal_attention=attention,
        )  # fmt: skip
        model = {"projection": "linear", "causal_attention": attention, "is_decoder": True}
        model |= {"num_slots": 4, "window": 16}
        (folder / "best" / "config.json").write_text(json.dumps(model))
        scores = {"part": "test", "metrics": {"bits_per_byte": 2.0}}
        (folder / "evaluation.json").write_text(json.dumps(scores))
    evidence = collect([tmp_path])
    assert [run.kind for run in evidence.runs] == ["vanilla", "Linformer, 4 slots, window 16"]
    assert "bits per byte 2 and the vanilla Transformer 2" in trained(tmp_path)
