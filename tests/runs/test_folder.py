"""What a run may remove, and what ties it to its data."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time

import pytest
import torch
import yaml

from linformer_kit.config.load import load
from linformer_kit.errors import UserError
from linformer_kit.evaluate.evaluation import evaluate_run
from linformer_kit.models import LinformerForMaskedLM
from linformer_kit.predict.answers import Options, predict_texts
from linformer_kit.runs.folder import RunFolder
from linformer_kit.train.run import train

from ..train import tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A tiny run that is finished; copied by the tests that change it."""
    folder = tmp_path_factory.mktemp("finished")
    train(load(tiny.write(folder, steps=4, eval_every=2, save_every=2)))
    return folder


@pytest.fixture
def run(tmp_path, finished):
    """A copy of it whose configuration names the copy."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, symlinks=True)
    config = tmp_path / "run/config.yaml"
    config.write_text(config.read_text().replace(str(finished), str(tmp_path)))
    tiny.write(tmp_path, steps=4, eval_every=2, save_every=2)
    return tmp_path


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def test_overwrite_in_a_project_folder_removes_nothing(tmp_path, monkeypatch):
    path = tiny.write(tmp_path, steps=2)
    (tmp_path / "config.yaml").write_text("a: project's own")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/thesis.txt").write_text("years of work")
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not a run's folder"):
            train(load(path, ["run=."]), overwrite=overwrite)
    assert contents(tmp_path) == before


def test_what_a_killed_start_leaves_does_not_block_the_next_one(tmp_path):
    config = load(tiny.write(tmp_path))
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for name in (".saving-71-run.json", ".lock", ".lock-holder"):
        (folder.path / name).write_text("half")
    folder.check_for(config, overwrite=False)
    folder.open_for(config, {"rows": "x"}, overwrite=False)
    assert folder.has_marker
    assert not list(folder.path.glob(".saving*"))


def test_overwrite_removes_the_run_and_keeps_what_is_not_its_own(run, capsys):
    foreign = {
        run / "run/notes.txt",
        run / "run/best/notes.txt",
        run / "run/checkpoints/checkpoint-2/notes.txt",
        run / "run/checkpoints/other/notes.txt",
        run / "run/tensorboard/notes.txt",
    }
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (run / "outside").mkdir()
    (run / "outside/model.safetensors").write_text("mine")
    (run / "run/link").symlink_to(run / "outside")
    train(load(run / "tiny.yaml", ["seed=1"]), overwrite=True)
    assert RunFolder(run / "run").config().seed == 1
    assert all(path.read_text() == "mine" for path in foreign)
    assert (run / "run/link/model.safetensors").read_text() == "mine"
    said = capsys.readouterr().out
    assert all(str(path) in said for path in foreign)


@pytest.mark.parametrize("name", ["best", "last", "checkpoints", "tensorboard"])
def test_a_link_in_place_of_a_runs_folder_is_refused(run, name):
    folder = run / "run" / name
    folder.rename(run / "elsewhere")
    folder.symlink_to(run / "elsewhere")
    before = contents(run / "elsewhere")
    with pytest.raises(UserError, match=f"{name} is not a folder that a run wrote"):
        train(load(run / "tiny.yaml", ["seed=1"]), overwrite=True)
    assert contents(run / "elsewhere") == before


@pytest.mark.parametrize("place", ["working directory", "parent of it", "home", "data"])
def test_overwrite_is_refused_where_a_run_shares_its_folder(run, monkeypatch, place):
    folder = run / "run"
    (folder / "inner").mkdir()
    overrides = ["seed=1"]
    if place == "working directory":
        monkeypatch.chdir(folder)
    elif place == "parent of it":
        monkeypatch.chdir(folder / "inner")
    elif place == "home":
        monkeypatch.setenv("HOME", str(folder))
    else:
        shutil.copy(run / "text.txt", folder / "inner/text.txt")
        overrides.append(f"data.train={folder / 'inner/text.txt'}")
    before = contents(folder)
    with pytest.raises(UserError, match="--overwrite is refused in"):
        train(load(run / "tiny.yaml", overrides), overwrite=True)
    assert contents(folder) == before


def test_overwrite_never_removes_a_foreign_file_wherever_it_is(tmp_path, run):
    """Random foreign files, folders and links in a run's folder, by many overwrites."""
    draw = random.Random(0)
    folder = run / "run"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("mine")
    names = ["config.json", "model.safetensors", ".saving-best", ".saving-x", "a b", "checkpoint-9"]
    names += ["run.json.bak", "manifest.json~", "ünï", ".hidden", "optimizer.pt", "-rf", "*"]
    mine = {}
    for number in range(4):
        folders = [path for path in [folder, *folder.rglob("*")] if path.is_dir()]
        for _ in range(6):
            path = draw.choice(folders) / f"{number}-{draw.choice(names)}"
            if path.exists() or path.is_symlink():
                continue
            if draw.random() < 0.3:
                path.symlink_to(outside, target_is_directory=True)
                mine[path] = None
            else:
                path.write_text(f"mine {path}")
                mine[path] = f"mine {path}"
        train(load(run / "tiny.yaml", [f"seed={number + 1}", "train.steps=2"]), overwrite=True)
        for path, text in mine.items():
            assert path.is_symlink() if text is None else path.read_text() == text
        assert (outside / "precious.txt").read_text() == "mine"
        assert RunFolder(folder).config().seed == number + 1


def test_a_run_is_not_resumed_with_other_data(run):
    path = run / "tiny.yaml"
    (run / "run/evaluation.json").unlink()  # as if it had been stopped before its end
    lines = (run / "text.txt").read_text()
    (run / "text.txt").write_text(lines.replace("dog", "fox"))
    before = contents(run / "run")
    with pytest.raises(UserError, match=r"the data of .*run has changed .*train.*--overwrite"):
        train(load(path))
    assert {k: v for k, v in contents(run / "run").items() if k.name != ".lock"} == {
        k: v for k, v in before.items() if k.name != ".lock"
    }
    (run / "text.txt").write_text(lines)  # restored, with another time of change
    assert train(load(path)) is not None


def test_evaluate_uses_the_runs_own_tokenizer_when_texts_were_added(run, capsys):
    folder = RunFolder(run / "run")
    before = folder.evaluation_file.read_bytes()
    unchanged = evaluate_run(folder)
    assert "data_changed" not in unchanged
    with (run / "text.txt").open("a") as file:
        file.writelines(f"ÄÖÜ ßéè {number} ☃☃ 漢字 %$ §\n" for number in range(50))
    found = evaluate_run(folder)
    assert found["data_changed"] is True
    assert "has changed since it was trained" in capsys.readouterr().out
    assert folder.evaluation_file.read_bytes() == before


def test_evaluate_and_predict_take_a_checkpoint(run):
    folder = RunFolder(run / "run")
    shutil.rmtree(folder.best)
    shutil.rmtree(folder.last)
    folder.evaluation_file.unlink()
    with pytest.raises(UserError, match=r"no best model yet.*steps 2, 4: use --model 4"):
        evaluate_run(folder)
    assert evaluate_run(folder, which="2")["model"] == "checkpoint-2"
    (answer,) = predict_texts(folder, ["The old <mask>og"], which="4", options=Options())
    assert answer.problem is None
    assert not folder.finished


def test_an_input_without_an_answer_does_not_end_the_others(run):
    texts = ["no mask here", "The old <mask>og", "  ", "x " * 100 + "<mask>", "a <mask>"]
    answers = list(
        predict_texts(RunFolder(run / "run"), texts, options=Options(top=1), on_overflow="error")
    )
    assert [answer.problem is None for answer in answers] == [False, True, False, False, True]
    assert "must hold <mask>" in answers[0].problem
    assert "at most data.max_length = 32 tokens: got" in answers[3].problem


def damaged(run, name):
    folder = RunFolder(run / "run")
    folder.evaluation_file.unlink()
    file = folder.last_checkpoint() / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return folder


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(run, finished, capsys, name):
    folder = damaged(run, name)
    assert train(load(run / "tiny.yaml")) is not None
    said = capsys.readouterr().out
    assert f"checkpoint-4 is damaged: {name} has" in said
    assert "Resuming from step 2 instead" in said
    for which in ("best", "last"):
        again = (folder.path / which / "model.safetensors").read_bytes()
        assert again == (finished / "run" / which / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt"])
def test_a_checkpoint_without_its_optimizer_is_not_resumed_in_silence(run, capsys, name):
    folder = RunFolder(run / "run")
    folder.evaluation_file.unlink()
    for checkpoint in folder.checkpoint_folders():
        (checkpoint / name).unlink()
    with pytest.raises(UserError, match=rf"{name} is missing, and there is no older checkpoint"):
        train(load(run / "tiny.yaml"))


def test_a_foreign_pickle_in_a_checkpoint_is_not_run(run, tmp_path):
    import pickle

    from linformer_kit.artifact import write_manifest

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    folder = RunFolder(run / "run")
    folder.evaluation_file.unlink()
    for checkpoint in folder.checkpoint_folders():
        for name in ("optimizer.pt", "scheduler.pt"):
            (checkpoint / name).write_bytes(pickle.dumps(Evil()))
        write_manifest(checkpoint)
    with pytest.raises(UserError, match=r"checkpoint-4 is damaged: optimizer\.pt: "):
        train(load(run / "tiny.yaml"))
    assert not (tmp_path / "owned").exists()


def test_two_processes_on_one_run_the_second_is_refused(tmp_path):
    path = tiny.write(tmp_path, steps=400, save_every=2, eval_every=400)
    folder = RunFolder(tmp_path / "run")
    process = tiny.start(path)
    while folder.last_checkpoint() is None and process.is_alive():
        time.sleep(0.01)
    with pytest.raises(UserError, match=f"is in use by process {process.pid} on"):
        train(load(path))
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    steps = [line["step"] for line in folder.metrics() if "loss" in line]
    assert steps == sorted(set(steps))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_row(tmp_path, monkeypatch):
    forward, calls, poisoned = LinformerForMaskedLM.forward, [], []

    def nan_for_one_row(self, input_ids=None, **inputs):
        output = forward(self, input_ids, **inputs)
        calls.append(input_ids)
        if len(calls) == 5:
            poisoned.append(input_ids[3])
        if poisoned and any(torch.equal(row, poisoned[0]) for row in input_ids):
            output.loss = output.loss * float("nan")
        return output

    monkeypatch.setattr(LinformerForMaskedLM, "forward", nan_for_one_row)
    with pytest.raises(UserError, match=r"the loss is nan at step 5, in row \d+ of the training"):
        train(load(tiny.write(tmp_path, steps=8, save_every=2, eval_every=8)))
    assert RunFolder(tmp_path / "run").last_checkpoint().name == "checkpoint-4"


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    forward, calls = LinformerForMaskedLM.forward, []

    def weights_diverge(self, *args, **inputs):
        output = forward(self, *args, **inputs)
        calls.append(1)
        if len(calls) == 3:
            self.lm_head.bias.data.fill_(float("nan"))
        return output

    monkeypatch.setattr(LinformerForMaskedLM, "forward", weights_diverge)
    with pytest.raises(UserError, match=r"not finite after step 3 \(lm_head.bias\)"):
        train(load(tiny.write(tmp_path, steps=8, save_every=1, eval_every=8)))
    folder = RunFolder(tmp_path / "run")
    assert folder.last_checkpoint().name == "checkpoint-2"
    assert not folder.last.exists()


def test_what_is_cut_is_told_when_training_starts_and_in_the_evaluation(tmp_path, capsys):
    path = tiny.write(tmp_path, "classify", steps=2, eval_every=2)
    folder = train(load(path, ["data.max_length=16", "model.k=4"]))
    assert folder is not None
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (start,) = [line for line in said if line.get("event") == "unread" and line["part"] == "train"]
    texts = tiny.SENTENCES  # a token a character, one before and one behind
    total = start["tokens"]
    assert start["cut_rows"] == start["rows"] < len(texts)
    assert start["cut_tokens"] == total - 16 * start["rows"]
    assert f"{100 * start['cut_tokens'] / total:.1f} % of the tokens" in start["message"]
    test = [line for line in said if line.get("event") == "unread" and line["part"] == "test"][-1]
    unread = folder.evaluation()["unread"]
    assert unread == {name: test[name] for name in ("cut_rows", "cut_tokens", "tokens")}
    assert unread["cut_rows"] > 0


def test_a_run_from_before_a_key_existed_is_the_same_run(run):
    folder, config = RunFolder(run / "run"), load(run / "tiny.yaml")
    written = yaml.safe_load(folder.config_file.read_text())
    del written["data"]["chunk_overlap"], written["data"]["on_overflow"]
    folder.config_file.write_text(yaml.safe_dump(written))
    folder.check_for(config, overwrite=False)
    with pytest.raises(UserError, match=r"data\.chunk_overlap is 0\.125 there and 0\.5 here"):
        folder.check_for(load(run / "tiny.yaml", ["data.chunk_overlap=0.5"]), overwrite=False)
