"""Which folder of a run holds the model that was asked for."""

from __future__ import annotations

import pytest

from linformer_kit.artifact import write_manifest
from linformer_kit.errors import UserError
from linformer_kit.runs.models import checkpoint_folders, model_folder


def make(run, *names):
    for name in names:
        (run / name).mkdir(parents=True)
        write_manifest(run / name)
    return run


def test_best_falls_back_to_last(tmp_path):
    assert model_folder(make(tmp_path, "last")) == tmp_path / "last"
    assert model_folder(make(tmp_path, "best")) == tmp_path / "best"


@pytest.mark.parametrize("which", ["60", "checkpoint-60"])
def test_a_checkpoint_is_named_by_its_step(tmp_path, which):
    make(tmp_path, "checkpoints/checkpoint-60")
    assert model_folder(tmp_path, which) == tmp_path / "checkpoints/checkpoint-60"


def test_without_a_model_the_steps_there_are_are_named(tmp_path):
    make(tmp_path, "checkpoints/checkpoint-60", "checkpoints/checkpoint-40")
    with pytest.raises(UserError, match=r"no best model yet.*steps 40, 60: use --model 60"):
        model_folder(tmp_path)
    with pytest.raises(UserError, match=r"no checkpoint of step 50.*40, 60"):
        model_folder(tmp_path, "50")


@pytest.mark.parametrize("which", ["", "../..", "bets", "-1", "1.5", "٣x", "9" * 30])
def test_anything_else_is_refused(tmp_path, which):
    with pytest.raises(UserError, match="best, last or the step"):
        model_folder(tmp_path, which)


def test_a_folder_that_only_looks_like_a_checkpoint_is_none(tmp_path):
    make(tmp_path, "checkpoints/checkpoint-20")
    for name in ("checkpoint-foo", "checkpoint-30", "checkpoint-"):
        (tmp_path / "checkpoints" / name).mkdir()
    (tmp_path / "checkpoints/checkpoint-40").write_text("a file")
    assert [path.name for path in checkpoint_folders(tmp_path)] == ["checkpoint-20"]
