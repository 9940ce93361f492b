"""What a report is made of: every record and run under the paths, and what could not be read."""

from __future__ import annotations

import pytest

from linformer_kit.evidence.report.collect import collect
from linformer_kit.evidence.report.sections import answer, highlights, sections

from .evidence import (
    all_records,
    grid_records,
    growth_records,
    heads_record,
    spectrum_record,
    write_comparison,
    write_records,
    write_run,
)


def test_records_and_runs_are_found_however_deep(tmp_path):
    write_records(tmp_path / "results" / "deep" / "grid.jsonl", grid_records())
    write_run(tmp_path / "runs" / "a", projection="linear", perplexity=10.0, seconds=0.5)
    found = collect([tmp_path, tmp_path / "results"])  # named twice, taken once
    assert len(found.records) == len(grid_records())
    assert [run.name for run in found.runs] == ["a"]
    assert found.runs[0].scores == {"perplexity": 10.0, "accuracy": 0.5}
    assert found.problems == []


def test_damaged_lines_are_told_and_the_rest_is_used(tmp_path):
    path = write_records(tmp_path / "grid.jsonl", grid_records())
    path.write_bytes(b'{"bench": \n' + path.read_bytes())
    found = collect([path])
    assert len(found.records) == len(grid_records())
    assert "line 1: not JSON" in found.problems[0]


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_nothing_to_report_is_an_error(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"does not exist|there is nothing to report"):
        collect([tmp_path / name])


def test_three_sentences_answer_whatever_there_is(tmp_path):
    write_records(tmp_path / "all.jsonl", all_records())
    write_run(tmp_path / "vanilla", projection="full", perplexity=10.0, seconds=1.0)
    write_run(tmp_path / "linformer", projection="linear", perplexity=10.1, seconds=0.5)
    evidence = collect([tmp_path])
    saved, trained, low_rank = answer(evidence)
    assert "reads 4,096 tokens 4.0 times faster than today's fused attention in 25% of" in saved
    assert trained == (
        "Trained side by side with one seed, the Linformer has perplexity 10.1 and the vanilla "
        "Transformer 10, at 50% of the time a step; no verdict: one seed is not enough."
    )
    assert "keeps 90% of its singular values with 3 of 4 ranks and 99% with 4," in low_rank
    assert [one.value for one in highlights(evidence)] == ["4.0x", "4.0x", "8.0x", "4"]
    assert "of the attention's singular values in script><b>bert" in highlights(evidence)[-1].label


def test_what_was_not_measured_is_said_and_has_no_section(tmp_path):
    evidence = collect([write_records(tmp_path / "growth.jsonl", growth_records())])
    saved, trained, low_rank = answer(evidence)
    assert saved.startswith("At 1,024 tokens Linformer takes 1/2 of the time")
    assert "was not measured: run `linformer compare`" in trained
    assert "was not measured: run `linformer spectrum`" in low_rank
    assert [section.name for section in sections(evidence)] == ["growth"]


def test_growth_is_that_of_the_width_most_was_measured_of(tmp_path):
    alone = {**growth_records()[-1], "dim": 64, "length": 1_048_576}
    evidence = collect([write_records(tmp_path / "growth.jsonl", [*growth_records(), alone])])
    (section,) = sections(evidence)
    assert [row[0].text for row in section.sheets[0].rows] == ["512", "1,024"]


def test_the_loss_over_time_agrees_with_the_time_of_a_step(tmp_path):
    home = tmp_path / "compare"
    slowed = write_run(home / "linear", projection="linear", perplexity=10.0, seconds=3.0)
    runs = [write_run(home / "full", projection="full", perplexity=10.0, seconds=1.0), slowed]

    def over_time():
        (section,) = sections(collect([tmp_path]))
        return next(figure for figure in section.figures if figure.name == "runs-loss-time")

    logged = over_time()
    assert [line.x[-1] * 60 for line in logged.lines] == pytest.approx([3.0, 9.0])
    assert "other work on the machine counts too" in logged.caption
    write_comparison(home, runs[:1], step_seconds=0.6)
    assert over_time() == logged  # one of two was timed: nothing to compare
    lines = [(home / "records.jsonl").read_text()]
    write_comparison(home, runs[1:], step_seconds=0.4)
    (home / "records.jsonl").write_text("".join([*lines, (home / "records.jsonl").read_text()]))
    whole = (home / "records.jsonl").read_text().replace("elsewhere/compare", "x/compare")
    (home / "records.jsonl").write_text(whole)
    timed = over_time()
    assert [line.x[-1] * 60 for line in timed.lines] == pytest.approx([1.8, 1.2])
    assert "measured with all runs in turn" in timed.caption
    assert "at 67% of the time a step" in answer(collect([tmp_path]))[1]


def test_every_kind_of_evidence_has_its_section(tmp_path):
    write_records(tmp_path / "all.jsonl", all_records())
    write_run(tmp_path / "vanilla", projection="full", perplexity=10.0, seconds=1.0)
    names = [section.name for section in sections(collect([tmp_path]))]
    assert names == [
        "grid",
        "growth",
        "runs",
        "spectrum-1",
        "heads-1",
        "needle-1",
        "budget",
        "peers",
        "decode",
        "roofline",
    ]


def test_records_of_two_models_with_one_name_have_figures_of_their_own(tmp_path):
    records = [
        {**spectrum_record(), "model": model} for model in ("runs/a/best", "old/a/best", "a b", "é")
    ]
    looks = [{**heads_record(), "model": model} for model in ("runs/a", "runs/b")]
    evidence = collect([write_records(tmp_path / "all.jsonl", [*records, *looks])])
    names = [figure.name for section in sections(evidence) for figure in section.figures]
    assert len(names) == len(set(names)) == 12
    assert all(name.isascii() for name in names)
