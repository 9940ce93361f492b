"""A comparison from its configuration to its folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from linformer_kit.compare import measure
from linformer_kit.compare.comparison import compare, planned_runs
from linformer_kit.compare.variants import variants
from linformer_kit.errors import UserError

from ..train import tiny


@pytest.fixture
def quick_memory(monkeypatch):
    """Without a fresh process for each variant; returns what was measured."""
    measured = []

    def training_memory(config):
        measured.append(config.run)
        return 1_000_000

    monkeypatch.setattr(measure, "training_memory", training_memory)
    return measured


def records_of(folder):
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [record for line in lines if "run" in (record := json.loads(line))]


def test_a_comparison_trains_and_draws_and_a_second_start_trains_nothing(
    tmp_path, quick_memory, capsys
):
    path = tiny.write(tmp_path, steps=4, eval_every=2)
    vary = ["model.projection=full,linear", "model.k=4,8"]
    home = tmp_path / "c"
    text = compare(path, [], vary, out=home)
    assert text is not None
    assert "| projection full |" in text
    assert "no verdict" in text
    files = {p.name for p in home.iterdir() if p.is_file()}
    assert files == {"README.md", "records.jsonl", "comparison.json", "curves.png", "over-k.png"}
    first = records_of(home)
    assert [record["full"] for record in first] == [True, False, False]
    assert len(quick_memory) == 3
    logged = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{"]
    assert {line["variant"] for line in logged} == {record["variant"] for record in first}
    again = compare(path, [], vary, out=home)
    assert again is not None
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert said[0].startswith("[projection full] ")
    assert all("is finished" in line for line in said)
    assert len(quick_memory) == 3  # known from the records
    assert [one["metrics"] for one in records_of(home)] == [one["metrics"] for one in first]


def test_values_that_used_to_share_a_name_are_two_runs_and_equal_ones_are_one(
    tmp_path, quick_memory
):
    path = tiny.write(tmp_path, steps=2, eval_every=2)
    home, said = tmp_path / "c", []
    vary = ["train.lr=0.5e-3,1.5e-3", "train.clip=1,1.0"]
    text = compare(path, [], vary, out=home, overwrite=True, say=said.append)
    first, second = records_of(home)
    assert first["run"] != second["run"]
    assert first["metrics"] != second["metrics"]
    rates = [
        yaml.safe_load((home / name / "config.yaml").read_text())["train"]["lr"]
        for name in ("lr-0.5e-3-clip-1", "lr-1.5e-3-clip-1")
    ]
    assert rates == [0.5e-3, 1.5e-3]
    note = "lr 0.5e-3, clip 1.0 is the same run as lr 0.5e-3, clip 1: trained once."
    assert note in said
    assert note in text


def test_seeds_are_trained_and_more_of_them_keep_the_earlier_runs(tmp_path, quick_memory, capsys):
    path = tiny.write(tmp_path, steps=2, eval_every=2)
    home = tmp_path / "c"
    compare(path, ["seed=5"], ["model.k=4"], out=home)
    capsys.readouterr()
    text = compare(path, ["seed=5"], ["model.k=4"], out=home, seeds=2)
    assert "2 seeds" in text
    assert " ± " in text
    assert "k-4 is finished" in capsys.readouterr().out
    records = records_of(home)
    assert [record["seed"] for record in records] == [5, 6]
    assert [record["run"].rpartition("/")[2] for record in records] == ["k-4", "k-4-seed-6"]
    assert records[0]["metrics"] != records[1]["metrics"]


def test_a_stopped_comparison_resumes_and_trains_only_what_is_left(
    tmp_path, quick_memory, monkeypatch, capsys
):
    from linformer_kit.compare import comparison as module

    path = tiny.write(tmp_path, steps=2, eval_every=2)
    real = module.train
    trained = []

    def killed_at_the_second(config, **options):
        trained.append(config.run)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return real(config, **options)

    monkeypatch.setattr(module, "train", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        compare(path, [], ["model.k=4,8"], out=tmp_path / "c")
    monkeypatch.setattr(module, "train", real)
    capsys.readouterr()
    assert compare(path, [], ["model.k=4,8"], out=tmp_path / "c") is not None
    said = capsys.readouterr().out
    assert "[k 4] " in said
    assert "k-4 is finished" in said
    assert "k-8 is finished" not in said


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="compare trains in one process"):
        compare(tiny.write(tmp_path), [], ["model.k=4"], out=tmp_path / "c")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_project_folder_is_left_alone(tmp_path, monkeypatch, overwrite):
    path = tiny.write(tmp_path, steps=2)
    (tmp_path / "README.md").write_text("# My project\n")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="is not a comparison's folder"):
        compare(path, [], ["model.k=4,8"], out=Path(), overwrite=overwrite)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("vary", "options", "message"),
    [
        (["model.k=4,64"], {}, r"k.*64"),  # longer than the text: found before any training
        (["model.kk=4"], {}, "unknown key"),
        (["model.k=4"], {"seeds": 0}, "--seeds must be at least 1: got 0"),
        (["seed=1,2"], {"seeds": 2}, "seed is varied by --seeds"),
        (["seed=-1"], {}, "seed"),
    ],
)
def test_a_mistake_in_any_variant_is_told_before_anything_is_written(
    tmp_path, vary, options, message
):
    path = tiny.write(tmp_path, steps=2)
    with pytest.raises(UserError, match=message):
        compare(path, [], vary, out=tmp_path / "c", **options)
    assert not (tmp_path / "c").exists()


def test_the_keys_of_one_part_stay_when_another_is_full(tmp_path):
    path = tiny.write(tmp_path, "translate")
    chosen = variants(["model.causal_attention=full,slots"]).chosen
    full, slots = planned_runs(path, ["model.num_slots=4"], chosen, 1, tmp_path, [])
    assert full.config.model.options["k"] == 8  # of the encoder, a Linformer in both
    assert "num_slots" not in full.config.model.options
    assert slots.config.model.options["num_slots"] == 4


def test_values_may_need_those_that_are_varied(tmp_path, quick_memory):
    path = tiny.write(tmp_path, steps=2, eval_every=2)
    compare(path, ["model.k=0"], ["model.window=4,8"], out=tmp_path / "c")  # k 0 needs a window
    assert [record["variant"] for record in records_of(tmp_path / "c")] == ["window 4", "window 8"]
