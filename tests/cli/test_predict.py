"""`linformer predict`: texts and files are answered; an option without effect is refused."""

from __future__ import annotations

import json

import pytest

from linformer_kit.cli.predict import TASKS, _effective
from linformer_kit.errors import UserError

from .test_main import run


def test_predict_speaks_json_to_programs(capsys, trained):
    folder = str(trained.parent / "run")
    code, out, _ = run(capsys, "predict", folder, "The old <mask>og", "--top", "3")
    assert code == 0
    assert len(json.loads(out)["answers"]) == 3


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
        (["--temperature", "1e-320"], "temperature must be 0, which takes the likeliest token, or"),
        (["--temperature", "100.1"], "1e-06 to 100: got 100.1"),
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
