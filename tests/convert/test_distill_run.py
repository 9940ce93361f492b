"""`linformer convert --steps`: killed at any moment and run again, it ends with the same bits."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from linformer_kit.runs.folder import RunFolder

from ..train.commands import pause, run, start
from .pretrained import write_model, write_text

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 12


def words(folder: Path, *more: object, out: str = "out") -> list[str]:
    """A command of 12 steps with rows of 20, 40 and 60 tokens."""
    sizes = ["--max-length", 60, "--k", 4, "--window", 4, "--global-tokens", 1]
    training = ["--steps", STEPS, "--save-every", 2, "--batch-size", 2, "--lr", 0.01]
    given = ["convert", folder / "bert", "--text", folder / "text.txt", "--out", folder / out]
    return [str(word) for word in (*given, *sizes, *training, *more)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A model and a text, and the bits of an uninterrupted conversion."""
    folder = tmp_path_factory.mktemp("inputs")
    write_model(folder / "bert")
    write_text(folder / "text.txt")
    code, out, err = run(folder / "log", *words(folder))
    assert (code, err) == (0, "")
    return folder, (folder / "out/model.safetensors").read_bytes(), out


def pause_in_step(given: tuple[Path, int]) -> None:
    place, step = given
    from linformer_kit.convert.distill_trainer import DistillTrainer

    loss_of = DistillTrainer.loss_of

    def paused(self: Any, *args: Any) -> Any:
        if self.state.global_step == step - 1:
            pause(place)
        return loss_of(self, *args)

    DistillTrainer.loss_of = paused  # type: ignore[method-assign]


def pause_while_saving(given: tuple[Path, int]) -> None:
    """Some files of a checkpoint are there."""
    place, step = given
    from linformer_kit.convert.distill_trainer import DistillTrainer

    save = DistillTrainer._save_optimizer_and_scheduler

    def paused(self: Any, output_dir: str) -> None:
        save(self, output_dir)
        if self.state.global_step == step:
            pause(place)

    DistillTrainer._save_optimizer_and_scheduler = paused  # type: ignore[method-assign]


def pause_before_the_record(given: tuple[Path, int]) -> None:
    """The files of the model are in their places."""
    from linformer_kit.convert.conversion_folder import ConversionFolder

    write = ConversionFolder.write_record

    def paused(self: Any, record: Any) -> None:
        pause(given[0])
        write(self, record)

    ConversionFolder.write_record = paused  # type: ignore[method-assign]


def test_killed_and_run_again_it_ends_with_the_same_bits(inputs, tmp_path):
    folder, bits, _ = inputs
    out = str(tmp_path)
    command_line = words(folder, out=out)
    moments = [
        (pause_in_step, 1),
        (pause_while_saving, 4),
        (pause_in_step, 6),
        (pause_while_saving, STEPS),
        (pause_before_the_record, 0),
    ]
    for number, (before, step) in enumerate(moments):
        place = folder / f"paused-{number}"
        command = start(folder / f"log-{number}", *command_line, before=before, given=(place, step))
        command.wait_for(place.exists)
        command.kill()
        assert not (tmp_path / "conversion.json").exists()
    code, said, err = run(folder / "again", *command_line)
    assert (code, err) == (0, "")
    assert "resuming from step 12" in said
    assert (tmp_path / "model.safetensors").read_bytes() == bits
    steps = [line["step"] for line in RunFolder(tmp_path / "distillation").metrics()]
    assert steps == sorted(set(steps))
    assert {2, 4, 6, 8, 10, 12} <= set(steps)
    assert not (tmp_path / "distillation/checkpoints").exists()


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_resume(inputs, tmp_path):
    folder, bits, _ = inputs
    command_line = words(folder, out=str(tmp_path))
    place = tmp_path.parent / f"{tmp_path.name}-paused"
    command = start(folder / "int", *command_line, before=pause_in_step, given=(place, 5))
    command.wait_for(place.exists)
    command.send(signal.SIGINT)
    place.unlink()
    assert command.wait() == 130
    assert "Stopped: saved at step 5. The same command resumes: linformer convert" in command.out
    logged = [line["step"] for line in RunFolder(tmp_path / "distillation").metrics()]
    assert logged[-1] == 5  # with the time until then
    code, said, _ = run(folder / "resumed", *command_line)
    assert code == 0
    assert "resuming from step 5" in said
    assert (tmp_path / "model.safetensors").read_bytes() == bits


def test_what_is_said_and_recorded(inputs):
    folder, _, said = inputs
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert lines[-1]["step"] == STEPS
    assert lines[-1]["seconds_left"] == 0.0
    record = json.loads((folder / "out/conversion.json").read_text())
    assert record["training"]["steps"] == STEPS
    assert set(record["training"]["rows"]) == {"20", "40", "60"}
    assert record["agreement"] == record["trained"] != record["untrained"]
    assert 0 <= record["trained"]["masked_accuracy"] <= 1
    assert len(record["trained"]["layer_errors"]) == 3
    assert f"after {STEPS} steps: cosine to the original" in said
    assert not (folder / "out/distillation/checkpoints").exists()


def test_a_finished_conversion_is_not_made_again(inputs):
    folder, bits, _ = inputs
    code, said, _ = run(folder / "finished", *words(folder))
    assert code == 0
    assert "holds this conversion already" in said
    assert (folder / "out/model.safetensors").read_bytes() == bits


@pytest.fixture
def interrupted(inputs, tmp_path):
    folder, _, _ = inputs
    place = tmp_path / "paused"
    command_line = words(folder, out=str(tmp_path / "out"))
    command = start(tmp_path / "log", *command_line, before=pause_in_step, given=(place, 4))
    command.wait_for(place.exists)
    command.kill()
    return folder, tmp_path / "out"


def test_a_conversion_is_not_resumed_with_other_options_or_other_text(interrupted, tmp_path):
    folder, out = interrupted
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, _, err = run(tmp_path / "other", *words(folder, "--seed", 1, out=str(out)))
    assert code == 2
    assert "holds a conversion with other options: seed is 0 there and 1 here" in err
    text = (folder / "text.txt").read_text()
    (folder / "text.txt").write_text(text.replace("cat", "dog"))
    try:
        code, _, err = run(tmp_path / "text", *words(folder, out=str(out)))
    finally:
        (folder / "text.txt").write_text(text)
    assert code == 2
    assert "the text of" in err
    assert "has changed since the conversion was started" in err
    after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert {k: v for k, v in after.items() if not k.name.startswith(".lock")} == {
        k: v for k, v in before.items() if not k.name.startswith(".lock")
    }


def test_a_file_of_the_user_is_not_replaced(interrupted, tmp_path):
    folder, out = interrupted
    (out / "config.json").write_text("mine")
    code, _, err = run(tmp_path / "file", *words(folder, out=str(out)))
    assert code == 2
    assert "config.json exists and was not written by this command: it is left alone" in err
    assert (out / "config.json").read_text() == "mine"
    (out / "config.json").unlink()
    assert run(tmp_path / "again", *words(folder, out=str(out)))[0] == 0


def test_minutes_end_by_the_clock_and_count_what_was_trained_before(inputs, tmp_path):
    folder, _, _ = inputs
    given = ["convert", folder / "bert", "--text", folder / "text.txt", "--out", tmp_path / "out"]
    sizes = ["--k", 4, "--window", 4, "--minutes", 0.03, "--save-every", 1]
    code, _, err = run(tmp_path / "log", *given, *sizes)
    assert (code, err) == (0, "")
    record = json.loads((tmp_path / "out/conversion.json").read_text())
    assert record["training"]["steps"] >= 1
    assert record["training"]["minutes"] >= 0.03
    spent = [line["spent_seconds"] for line in RunFolder(tmp_path / "out/distillation").metrics()]
    assert spent == sorted(spent)


@pytest.mark.parametrize("projection", ["mean", "pool"])
def test_the_scores_before_training_are_those_of_a_conversion_without(inputs, tmp_path, projection):
    folder, _, _ = inputs
    given = ["convert", folder / "bert", "--text", folder / "text.txt", "--projection", projection]
    sizes = ["--max-length", 60, "--k", 4, "--window", 4]
    trained, alone = (tmp_path / name for name in ("trained", "alone"))
    assert run(tmp_path / "1", *given, *sizes, "--out", trained, "--steps", 1)[0] == 0
    assert run(tmp_path / "2", *given, *sizes, "--out", alone)[0] == 0
    first, second = (json.loads((out / "conversion.json").read_text()) for out in (trained, alone))
    assert first["untrained"] == second["untrained"]
    assert first["original"] == second["original"]
