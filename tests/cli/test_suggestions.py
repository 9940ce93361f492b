"""An option or a command that does not exist: the form here is suggested."""

from __future__ import annotations

import pytest

from .test_main import run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--config", "x.yaml"], "as the first argument: linformer train x.yaml"),
        (["train", "--config=x.yaml"], "as the first argument: linformer train x.yaml"),
        (["train", "--config"], "as the first argument: linformer train CONFIG.yaml"),
        (["train", "-c", "x.yaml"], "as the first argument: linformer train x.yaml"),
        (["prepare", "--cfg", "x.yaml"], "as the first argument: linformer prepare x.yaml"),
        (["compare", "--config", "x.yaml"], "linformer compare x.yaml"),
        (["train", "x.yaml", "--steps", "100"], "Use train.steps=100"),
        (["train", "x.yaml", "--steps=100"], "Use train.steps=100"),
        (["train", "x.yaml", "--train.steps", "100"], "Use train.steps=100"),
        (["train", "x.yaml", "--lr", "1e-3"], "Use train.lr=1e-3"),
        (["train", "x.yaml", "--learning-rate", "1e-3"], "Use train.lr=1e-3"),
        (["train", "x.yaml", "--batch-size", "8"], "Use train.batch_size=8"),
        (["train", "x.yaml", "--k", "64"], "Use model.k=64"),
        (["train", "x.yaml", "--hidden-size", "64"], "Use model.hidden_size=64"),
        (["train", "x.yaml", "--seed", "3"], "Use seed=3"),
        (["train", "x.yaml", "--task", "mlm"], "Use task=mlm"),
        (["train", "x.yaml", "--fsdp"], "Use train.fsdp=VALUE"),
        (["train", "x.yaml", "--nonsense", "3"], "KEY=VALUE, for example train.steps=100"),
        (["train", "x.yaml", "--dryrun"], "Did you mean --dry-run?"),
        (["evaluate", "--run", "runs/a"], "without the option: linformer evaluate runs/a"),
        (["evaluate", "r", "--modle", "best"], "Did you mean --model?"),
        (["report", "--paths", "a"], "without the option: linformer report a"),
        (["bench", "grid", "--length", "3"], "Did you mean --lengths?"),
        (["fit"], "Did you mean 'linformer train'?"),
        (["tran"], "Did you mean 'linformer train'?"),
        (["eval", "x"], "Did you mean 'linformer evaluate'?"),
        (["growth"], "Did you mean 'linformer bench growth'?"),
        (["nonsense"], "There are: "),
        (["bench", "grow"], "Did you mean 'linformer bench growth'?"),
        (["bench", "nonsense"], "There are: attention, growth, grid"),
        (["--config", "x.yaml"], "No such option --config"),
        (["x" * 100_000], "No such command"),
        (["train", "--" + "x" * 100_000], "No such option"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_the_form_here_is_suggested(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("linformer: ")
    assert err.count("\n") == 1
    assert message in err
    assert len(err) < 1300


@pytest.mark.parametrize("name", ["fit", "eval", "infer", "plot", "sweep", "benchmark", "ls"])
def test_what_is_suggested_for_a_synonym_exists(capsys, name):
    _, _, err = run(capsys, name)
    meant = err.rpartition("'linformer ")[2].partition("'")[0]
    code, out, _ = run(capsys, meant, "--help")
    assert code == 0
    assert f"linformer {meant}" in out
