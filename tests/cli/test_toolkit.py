"""The commands of the toolkit: a mistake is one line, exit code 2, and nothing overwritten."""

from __future__ import annotations

import errno
import json
import os

import pytest

from linformer_kit.cli.toolkit import TASKS, _effective
from linformer_kit.config.load import load
from linformer_kit.errors import UserError
from linformer_kit.train.run import train

from ..train import tiny
from .test_main import run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    path = tiny.write(folder, steps=4, eval_every=4)
    train(load(path))
    return path


def test_evaluate_predict_and_runs_speak_json_to_programs(capsys, trained):
    folder = trained.parent / "run"
    code, out, _ = run(capsys, "evaluate", str(folder))
    assert code == 0
    assert json.loads(out)["metrics"]["perplexity"] > 1
    code, out, _ = run(capsys, "predict", str(folder), "The old <mask>og", "--top", "3")
    assert code == 0
    assert len(json.loads(out)["answers"]) == 3
    code, out, _ = run(capsys, "runs", str(trained.parent))
    assert code == 0
    assert json.loads(out)["finished"] is True


def test_scores_that_cannot_be_kept_are_told_all_the_same(capsys, trained, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, out, err = run(capsys, "evaluate", str(trained.parent / "run"))
    assert code == 2
    assert json.loads(out)["metrics"]["perplexity"] > 1
    assert "evaluation.json: No space left on device. What was there is intact" in err


def test_predict_reads_a_file(capsys, trained, tmp_path):
    (tmp_path / "in.txt").write_text("a <mask>\nthe <mask>g\n")
    code, out, _ = run(
        capsys, "predict", str(trained.parent / "run"), "--file", str(tmp_path / "in.txt")
    )
    assert code == 0
    assert [json.loads(line)["input"] for line in out.splitlines()] == ["a <mask>", "the <mask>g"]


def test_predict_reports_blank_lines_and_inputs_without_an_answer(capsys, trained, tmp_path):
    run_folder, file = str(trained.parent / "run"), tmp_path / "in.txt"
    for text, expected in (("a <mask>\n\nthe <mask>g\n", 0), ("a <mask>\nno\n", 2), ("\n", 2)):
        file.write_text(text)
        code, out, err = run(capsys, "predict", run_folder, "--file", str(file))
        assert code == expected
        assert len(out.splitlines()) == len(text.splitlines())  # one answer or error for each
        assert "input " in err


def test_prepare_tells_what_it_made(capsys, trained):
    code, out, _ = run(capsys, "prepare", str(trained))
    assert code == 0
    assert json.loads(out)["parts"]["train"]["words"] > 100


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (None, ["train.stepz=3"], "Did you mean 'train.steps'?"),
        (None, ["train.steps=many"], "train.steps: input should be a valid integer"),
        (None, ["data.train=nowhere.txt"], "there is no file or folder nowhere.txt"),
        (None, ["model.k=64"], "k"),
        (None, ["train.fsdp=true"], "needs more than one process"),
        (None, ["train.batch_size=9", "train.accumulate=2"], "multiple"),
        (b"", [], "the training corpus is empty"),
        (b"ok\n\xc3\x28\n", [], "is not UTF-8: line 2 holds the byte 0xc3"),
        (b"x" * 1_000_001, ["data.max_document_mb=1"], "line 1 of"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(capsys, tmp_path, change, arguments, message):
    path = tiny.write(tmp_path)
    if change is not None:
        (tmp_path / "text.txt").write_bytes(change)
    code, out, err = run(capsys, "train", str(path), *arguments)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if line.startswith("linformer: ")]
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(capsys, trained):
    before = {p: p.stat().st_mtime_ns for p in (trained.parent / "run").rglob("*") if p.is_file()}
    code, _, err = run(capsys, "train", str(trained), "train.lr=0.5")
    assert code == 2
    assert "--overwrite" in err
    assert before == {
        p: p.stat().st_mtime_ns for p in (trained.parent / "run").rglob("*") if p.is_file()
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "."], "is not a run"),
        (["predict", ".", "x"], "is not a run"),
        (["runs", "no-such-folder"], "there is no folder"),
        (["train", "none.yaml"], "cannot read the configuration none.yaml"),
        (["compare", "none.yaml"], "compare needs at least one --vary"),
    ],
)
def test_a_mistake_is_one_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_predict_without_a_mask_is_told(capsys, trained):
    code, _, err = run(capsys, "predict", str(trained.parent / "run"), "no mask here")
    assert code == 2
    assert "the text must hold <mask>" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0.5"], "--temperature has no effect in a run of the task 'mlm'"),
        (["--temperature", "0"], "only in 'clm'"),
        (["--seed", "3"], "--seed has no effect in a run of the task 'mlm', only in 'clm'"),
        (["--max-new-tokens", "3"], "only in 'clm' and 'translate'. Leave it out."),
        (["--temperature", "nan"], "--temperature"),
        (["--top", "0"], "--top"),
    ],
)
def test_an_option_of_predict_without_effect_is_refused(capsys, trained, options, message):
    folder = str(trained.parent / "run")
    code, out, err = run(capsys, "predict", folder, "The <mask>", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


WITH_EFFECT = {
    "mlm": {"top": 3},
    "classify": {"top": 3},
    "clm": {"max_new_tokens": 4, "temperature": 0.8, "seed": 1},
    "translate": {"max_new_tokens": 4},
}


@pytest.mark.parametrize("task", WITH_EFFECT)
def test_each_task_takes_the_options_that_have_an_effect(task):
    given = dict.fromkeys(TASKS) | WITH_EFFECT[task]
    assert _effective(task, **given) == WITH_EFFECT[task]
    for name in TASKS.keys() - WITH_EFFECT[task].keys():
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')} has no effect"):
            _effective(task, **dict.fromkeys(TASKS) | {name: 1})


@pytest.mark.parametrize("temperature", [None, 0.0])
def test_a_seed_without_a_temperature_is_refused(temperature):
    with pytest.raises(UserError, match="--seed has no effect at temperature 0"):
        _effective("clm", seed=3, temperature=temperature)
