"""`linformer predict --onnx` answers every task as the run's own model does."""

from __future__ import annotations

import json

import pytest

from linformer_kit.config.load import load
from linformer_kit.train.run import train

from ..train import tiny
from .test_main import run

TEXTS = {
    "mlm": "The old <mask>og runs.",
    "classify": "The old dog runs.",
    "clm": "The old ",
    "translate": "The old dog",
}


def trained(folder, task, *overrides):
    train(load(tiny.write(folder, task, steps=2, eval_every=2), overrides))
    return str(folder / "run")


def exported(capsys, folder, made_of, *options):
    path = str(folder / "model.onnx")
    code, _, err = run(capsys, "export", made_of, "--to", path, *options)
    assert code == 0, err
    return path


def answers(capsys, *arguments):
    code, out, err = run(capsys, "predict", *arguments)
    assert code == 0, err
    return json.loads(out)["answers"]


EACH_TASK = [  # a translation takes twenty seconds, and is exported by tests/export too
    pytest.param(task, marks=pytest.mark.slow) if task == "translate" else task for task in TEXTS
]


@pytest.mark.parametrize("task", EACH_TASK)
def test_it_answers_as_torch_does(capsys, tmp_path, task):
    folder = trained(tmp_path, task)
    path = exported(capsys, tmp_path, folder)
    exact = answers(capsys, folder, TEXTS[task])
    ours = answers(capsys, folder, TEXTS[task], "--onnx", path)
    assert [answer["text"] for answer in ours] == [answer["text"] for answer in exact]
    scores = [answer.get("score", 0.0) for answer in exact]
    assert [answer.get("score", 0.0) for answer in ours] == pytest.approx(scores, abs=1e-4)
    if task == "clm":
        drawn = [
            answers(capsys, folder, "The", "--onnx", path, "--temperature", "2", "--seed", seed)
            for seed in ("1", "1", "2")
        ]
        assert drawn[0] == drawn[1] != drawn[2]


def test_a_file_of_8_bits_and_files_that_do_not_fit(capsys, tmp_path):
    folder = trained(tmp_path / "mlm", "mlm")
    path = exported(capsys, tmp_path, folder, "--int8")
    rounded = path.replace(".onnx", ".int8.onnx")
    assert len(answers(capsys, folder, TEXTS["mlm"], "--onnx", rounded, "--top", "2")) == 2
    # The run may read longer texts than the file.
    longer = trained(tmp_path / "longer", "mlm", "data.max_length=48")
    other = trained(tmp_path / "other", "classify")
    capsys.readouterr()
    text = "<mask>" + "a" * 40
    for arguments, message in (
        ([longer, text, "--onnx", path], "at most 32 positions: got 4"),
        ([other, "a", "--onnx", path], "was made of a LinformerForMaskedLM: this"),
        ([folder, "a <mask>", "--onnx", path + ".no"], "there is no file"),
    ):
        code, out, err = run(capsys, "predict", *arguments)
        assert code == 2
        assert out == "" or message in json.loads(out)["error"]  # an input that is not answered
        lines = [line for line in err.splitlines() if line.startswith("linformer: ")]
        assert message in lines[0]
