"""train.sequence_parallel: rows cut over processes give the run of one process."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from linformer_kit.config.load import load
from linformer_kit.data.collate import Collate
from linformer_kit.data.masking import IGNORED
from linformer_kit.runs.folder import RunFolder
from linformer_kit.train.run import train
from linformer_kit.training.layout import Layout, OwnPositions

from . import commands, group, tiny

STEPS = {"steps": 6, "log_every": 1, "eval_every": 3, "save_every": 2}
WINDOW = ["model.window=4", "model.projection=mean"]


def losses(folder: RunFolder) -> list[float]:
    return [line["loss"] for line in folder.metrics() if "loss" in line]


def scores(folder: RunFolder) -> list[dict[str, float]]:
    return [line["validation"] for line in folder.metrics() if "validation" in line]


def assert_same_weights(ours: RunFolder, theirs: RunFolder) -> None:
    """FSDP saves tied weights under both of their names."""
    found, expected = (load_file(f.last / "model.safetensors") for f in (ours, theirs))
    found = {name: found[name] for name in expected}
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def assert_same_run(ours: RunFolder, theirs: RunFolder) -> None:
    """Losses, validations, weights and final scores are equal to rounding."""
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-4)
    for one, other in zip(scores(ours), scores(theirs), strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    assert_same_weights(ours, theirs)
    one, other = (folder.evaluation()["metrics"] for folder in (ours, theirs))
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


def trained(folder, processes, task, *words, **settings) -> RunFolder:
    path = tiny.write(folder, task, **{**STEPS, **settings})
    if processes == 1:
        return train(load(path, [*tiny.NO_DROPOUT, *words]))
    group.run(folder / "logs", processes, "train", path, *tiny.NO_DROPOUT, *words)
    return RunFolder(folder / "run")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("mlm", WINDOW),
        ("clm", ["train.gradient_checkpointing=true"]),
        ("classify", ["model.pooling=cls", "model.projection=dynamic"]),
        ("tag", ["model.neighbours=3"]),
        commands.slow("mlm", ["train.accumulate=2", "model.projection=conv"]),
        commands.slow(
            "classify", ["model.pooling=mean", "model.global_tokens=1", "model.window=4"]
        ),
    ],
)
def test_two_sequence_ranks_train_and_score_as_one_process(tmp_path, task, words):
    alone = trained(tmp_path / "alone", 1, task, *words)
    together = trained(tmp_path / "two", 2, task, *words, "train.sequence_parallel=2")
    assert_same_run(together, alone)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [2, 4])
@pytest.mark.parametrize("fsdp", ["false", "true"])
def test_four_processes_as_a_grid_train_as_one(tmp_path, sequence, fsdp):
    alone = trained(tmp_path / "alone", 1, "mlm")
    words = [f"train.sequence_parallel={sequence}", f"train.fsdp={fsdp}"]
    assert_same_run(trained(tmp_path / "four", 4, "mlm", *words), alone)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_fifty_steps_give_the_curve_of_one_process(tmp_path, processes):
    length = {"steps": 50, "eval_every": 25, "save_every": 25}
    alone = trained(tmp_path / "alone", 1, "mlm", *WINDOW, **length)
    cut = f"train.sequence_parallel={processes}"
    together = trained(tmp_path / "together", processes, "mlm", *WINDOW, cut, **length)
    assert len(losses(alone)) == 50
    assert_same_run(together, alone)


WRONG = [
    ("mlm", 2, ["train.sequence_parallel=3"], "must divide the number of processes: got 3 and 2"),
    ("mlm", 1, ["train.sequence_parallel=2"], "must divide the number of processes: got 2 and 1"),
    ("mlm", 2, ["model.projection=max"], "sum over positions, linear or"),
    ("mlm", 2, ["model.projection=pool"], "got 'pool'"),
    ("mlm", 2, ["model.projection=full"], "got 'full'"),
    ("clm", 2, ["model.causal_attention=full"], "model.causal_attention that is a sum"),
    ("mlm", 2, ["data.max_length=1", "model.k=1"], "one position for each rank: got 1 and 2"),
    ("translate", 2, [], "is for the tasks mlm, clm, classify, tag: got task 'translate'"),
    ("mlm", 2, ["train.compile=true"], "does not work with train.compile"),
    (
        "mlm",
        2,
        ["train.batch_size=9", "train.accumulate=3", "train.sequence_parallel=x"],
        "got 'x'",
    ),
]


@pytest.mark.parametrize(("task", "processes", "words", "message"), WRONG)
def test_wrong_use_is_one_line_of_rank_0(tmp_path, task, processes, words, message):
    path = tiny.write(tmp_path, task)
    given = ["train.sequence_parallel=2", *words]
    with group.started(tmp_path / "logs", processes, "train", path, *given) as ranks:
        codes = ranks.wait()
    first, *others = (rank.err for rank in ranks.ranks)
    assert codes == [2] * processes
    assert message in first
    assert first.startswith("linformer: ")
    assert first.count("\n") == 1
    assert others == [""] * len(others)
    assert not (tmp_path / "run").exists()


def test_a_mistake_of_another_rank_alone_is_said_by_that_rank(tmp_path):
    path = tiny.write(tmp_path)
    with group.started(
        tmp_path / "logs", 2, "train", path, before=_hide_file_on_rank_1, given=path
    ) as ranks:
        ranks.ranks[1].wait()
        assert "linformer: " in ranks.ranks[1].err
        assert ranks.ranks[0].err == ""


def _hide_file_on_rank_1(path) -> None:
    import os
    import sys

    if os.environ["RANK"] == "1":
        sys.argv[2] = f"{path}-that-is-not-there.yaml"


def test_checkpoints_do_not_depend_on_the_layout(tmp_path):
    """1 process, then 2 sequence ranks, then 1: each is killed in a step, and the next resumes."""
    _check_layouts(tmp_path, [1, 2, 1])


@pytest.mark.slow
def test_checkpoints_do_not_depend_on_the_layout_of_four(tmp_path):
    _check_layouts(tmp_path, [1, 2, 4, 1])


def _check_layouts(tmp_path, layouts) -> None:
    """Four processes are a grid of two by two; weights end within rounding."""
    settings = {"steps": 2 * len(layouts), "save_every": 1, "eval_every": 4, "log_every": 1}
    whole = tiny.write(tmp_path / "whole", **settings)
    expected = train(load(whole, tiny.NO_DROPOUT))
    path = tiny.write(tmp_path / "parts", **settings)
    for number, processes in enumerate(layouts):
        words = [*tiny.NO_DROPOUT, f"train.sequence_parallel={min(processes, 2)}"]
        logs = tmp_path / f"logs-{number}"
        if number + 1 == len(layouts):
            group.run(logs, processes, "train", path, *words)
            continue
        place, step = tmp_path / f"paused-{number}", 2 * number + 3
        with group.started(
            logs,
            processes,
            "train",
            path,
            *words,
            before=commands.pause_in_step,
            given=(place, step),
        ) as ranks:
            ranks.ranks[0].wait_for(place.exists)
            ranks.kill()
        place.unlink()
    found = RunFolder(tmp_path / "parts" / "run")
    assert losses(found) == pytest.approx(losses(expected), rel=1e-4)
    assert_same_weights(found, expected)


def test_the_same_layout_ends_with_the_same_bits(tmp_path):
    """With dropout, killed in a step and resumed."""
    words = ["train.sequence_parallel=2"]
    whole = tiny.write(tmp_path / "whole", **STEPS)
    group.run(tmp_path / "logs", 2, "train", whole, *words)
    path = tiny.write(tmp_path / "parts", **STEPS)
    place = tmp_path / "paused"
    with group.started(
        tmp_path / "first", 2, "train", path, *words,
        before=commands.pause_in_step, given=(place, 4),
    ) as ranks:  # fmt: skip
        ranks.ranks[0].wait_for(place.exists)
        ranks.kill()
    place.unlink()
    group.run(tmp_path / "again", 2, "train", path, *words)
    assert commands.results(tmp_path / "parts/run") == commands.results(tmp_path / "whole/run")


def test_each_rank_keeps_its_part_of_a_row():
    rows = [{"input_ids": torch.arange(1, n + 1).numpy(), "labels": 1} for n in (7, 3)]
    parts = [
        Collate("classify", cut=OwnPositions(Layout(rank, 3, 3), 1, False))(rows)
        for rank in range(3)
    ]
    whole = Collate("classify")(rows)
    for name in ("input_ids", "attention_mask"):
        assert torch.equal(torch.cat([part[name] for part in parts], 1), whole[name])
    assert [part["input_ids"].shape[1] for part in parts] == [3, 2, 2]
    assert parts[1]["input_ids"].untyped_storage().nbytes() == 2 * 2 * 8  # the rest is freed
    assert all(torch.equal(part["labels"], whole["labels"]) for part in parts)


def test_rows_shorter_than_the_ranks_are_filled_up():
    rows = [{"input_ids": torch.tensor([5, 6]).numpy()}]
    parts = [
        Collate("clm", cut=OwnPositions(Layout(rank, 4, 4), 1, True))(rows) for rank in range(4)
    ]
    assert torch.cat([part["attention_mask"] for part in parts], 1).tolist() == [[1, 1, 0, 0]]
    labels = torch.cat([part["labels"] for part in parts], 1)
    assert labels.tolist() == [[IGNORED, 6, IGNORED, IGNORED]]


def test_ranks_of_a_sequence_group_follow_each_other():
    places = [Layout(rank, 6, 2) for rank in range(6)]
    assert [(each.data_rank, each.sequence_rank) for each in places] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
