"""`predict --tokens`: an input read block by block has the answer of a whole one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from linformer_kit.cli.app import run as command
from linformer_kit.config.load import load
from linformer_kit.errors import UserError
from linformer_kit.models import LinformerConfig, LinformerForSequenceClassification
from linformer_kit.predict import streamed
from linformer_kit.predict.streamed import predict_streamed
from linformer_kit.train.run import train

from ..train import tiny

SHORT = {"steps": 2, "eval_every": 2, "save_every": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tiny.write(tmp_path_factory.mktemp("streamed"), "classify", **SHORT)
    return train(load(path, ["model.pooling=mean", "model.window=4", "model.projection=mean"]))


@pytest.fixture
def tokens(tmp_path):
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).integers(5, 20, 29, dtype=np.uint8))
    return tmp_path / "tokens.npy"


def test_the_answer_is_that_of_the_whole_input(folder, tokens):
    found = predict_streamed(folder, tokens, block=8).answers
    model = LinformerForSequenceClassification.from_pretrained(folder.best).eval()
    with torch.no_grad():
        logits = model(torch.tensor(np.load(tokens)).long()[None]).logits[0]
    likely = {model.config.id2label[n]: float(p) for n, p in enumerate(logits.softmax(-1))}
    assert {one["text"]: one["score"] for one in found} == pytest.approx(likely, abs=1e-5)
    assert found[0]["score"] >= found[1]["score"]


def test_the_command_prints_one_answer(folder, tokens, capsys):
    assert command(["predict", str(folder.path), "--tokens", str(tokens), "--top", "1"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["input"] == str(tokens)
    assert len(said["answers"]) == 1


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3), dtype=np.int64), r"whole numbers of shape \(N\): got \(2, 3\)"),
        (np.zeros(3), "of float64"),
        (np.zeros(0, dtype=np.int64), r"got \(0,\)"),
        (np.zeros(33, dtype=np.int64), "data.max_length = 32 positions"),
        (np.full(3, 9999), "below vocab_size"),
    ],
)
def test_other_arrays_are_refused(folder, tmp_path, array, message):
    np.save(tmp_path / "wrong.npy", array)
    with pytest.raises(UserError, match=message):
        predict_streamed(folder, tmp_path / "wrong.npy")


def test_features_without_a_finite_answer_are_refused(tmp_path, folder, monkeypatch):
    torch.manual_seed(0)
    model = LinformerForSequenceClassification(
        LinformerConfig(
            feature_size=1, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=32, k=4, pooling="mean",
            projection="mean",
        )
    )  # fmt: skip
    monkeypatch.setattr(streamed, "load_pretrained", lambda kind, path: model)
    for value in (np.nan, 1e30):
        np.save(tmp_path / "a.npy", np.full((8, 1), value, dtype=np.float32))
        with pytest.raises(UserError, match="no finite answer"):
            predict_streamed(folder, tmp_path / "a.npy")


def test_a_file_that_is_no_array_and_another_input_are_refused(folder, tmp_path, capsys):
    wrong = tmp_path / "text.npy"
    wrong.write_text("no array")
    assert command(["predict", str(folder.path), "--tokens", str(wrong)]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert command(["predict", str(folder.path), "text", "--tokens", str(wrong)]) == 2
    assert "leave texts out" in capsys.readouterr().err
