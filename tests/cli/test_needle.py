"""`linformer evaluate --needle` on a run, a model folder and a plain encoder."""

from __future__ import annotations

import json

import pytest
import torch

from linformer_kit.config.load import load
from linformer_kit.train.run import train

from ..evidence.analysis.test_spectrum import save_bert
from ..search.conftest import save_model
from ..train import tiny
from .test_main import run as command

SMALL = ("--lengths", "96,160", "--depths", "2", "--documents", "2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run of the task embed, a folder of sentence-transformers, and an encoder alone."""
    place = tmp_path_factory.mktemp("needle")
    path = tiny.write(place / "embed", "embed", steps=2, eval_every=2)
    with torch.enable_grad():
        train(load(path))
    return {
        "run": place / "embed/run",
        "sentence": save_model(place / "sentence"),
        "plain": save_bert(place / "plain"),
    }


@pytest.mark.parametrize(
    ("which", "longest", "policy"),
    [("run", 32, "chunk"), ("sentence", 24, "truncate"), ("plain", 64, "truncate")],
)
def test_every_kind_of_model_is_tested(capsys, folders, tmp_path, which, longest, policy):
    out = tmp_path / "needle.jsonl"
    # Characters as tokens: the needle itself has more than a hundred.
    size = ("--lengths", "256,320", *SMALL[2:]) if which == "run" else SMALL
    before = sorted(path.name for path in folders[which].rglob("*"))
    capsys.readouterr()
    code, text, err = command(
        capsys, "evaluate", str(folders[which]), "--needle", *size, "--out", str(out)
    )
    assert code == 0, err
    record = json.loads(text)
    assert json.loads(out.read_text()) == record
    assert (record["longest"], record["policy"], record["candidates"]) == (longest, policy, 4)
    for part in record["parts"]:
        for cell in part["lengths"]:
            assert (cell["pieces"] > 1) == (policy == "chunk")
            assert (cell["tokens_read"] < cell["tokens_total"]) == (policy == "truncate")
            assert all(0.0 <= share <= 1.0 for share in cell["accuracy"])
    assert ("read in pieces" in err) == (policy == "chunk")
    assert ("tokens were not" in err) == (policy == "truncate")
    assert ("is an encoder without modules.json" in err) == (which == "plain")
    assert sorted(path.name for path in folders[which].rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--needle", "--part", "test"], "--part has no effect with --needle"),
        (["--depths", "3"], "--depths has no effect without --needle"),
        (["--needle", "--on-overflow", "extend"], "must be truncate or chunk with --needle"),
        (["--needle", "--model", "last"], "--model chooses a model of a run"),
        (["--needle", "--lengths", "9"], "room for its needle"),
        (["--needle", "--lengths", "x"], "--lengths takes whole numbers"),
    ],
)
def test_a_mistake_is_one_line(capsys, folders, tmp_path, arguments, message):
    capsys.readouterr()
    out = ["--out", str(tmp_path / "x.jsonl")] if "--needle" in arguments else []
    code, _, err = command(capsys, "evaluate", str(folders["sentence"]), *arguments, *out)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_a_run_of_another_task_is_refused(capsys, tmp_path):
    path = tiny.write(tmp_path, "mlm", steps=1, eval_every=1)
    with torch.enable_grad():
        train(load(path))
    capsys.readouterr()
    code, _, err = command(capsys, "evaluate", str(tmp_path / "run"), "--needle")
    assert code == 2
    assert "for models that give vectors (task: embed): got a run of the task 'mlm'" in err
