"""Help, versions and mistakes are told before torch is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from linformer_kit.cli.app import app

from ..config.test_load import GOOD, write
from ..search.conftest import save_model

HEAVY = ("torch", "numpy", "transformers", "datasets", "keras", "onnx", "matplotlib", "plotly")


# What no command needs that asks a model.
NOT_FOR_ANSWERS = (
    "datasets", "fastapi", "keras", "matplotlib", "onnx", "onnxruntime", "pandas", "plotly",
    "pyarrow", "sacrebleu", "sentence_transformers", "sklearn", "tensorboard",
    "torchmetrics", "wandb",
)  # fmt: skip


def imported_by(arguments: list[str], heavy: tuple[str, ...] = HEAVY) -> tuple[str, str, set[str]]:
    """The exit code, what was said on stderr, and the heavy packages that were imported."""
    code = (
        "import sys\nfrom linformer_kit.cli import main\n"
        f"try:\n    main({arguments!r})\n"
        "except SystemExit as ended:\n    code = ended.code or 0\n"
        f"print('\\nended', code, *(name for name in {heavy!r} if name in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    _, code, *found = answer.stdout.splitlines()[-1].split()
    return code, answer.stderr, set(found)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--help"],
        ["--version"],
        ["--show-completion", "zsh"],
        ["bench"],
        ["train", "--help"],
        ["bench", "grid", "--help"],
        ["spectrum", "--help"],
    ],
    ids=" ".join,
)
def test_help_and_versions_import_nothing_heavy(arguments):
    assert imported_by(arguments) == ("0", "", set())


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "{}", "train.stpes=1"],
        ["train", "{}", "train.steps=many"],
        ["train", "{}", "model.k=abc"],
        ["train", "{}", "model.hidden_size=100000000"],
        ["train", "{}", "train.threads=100000"],
        ["train", "{}", "data.train=''"],
        ["train", "{}", "train.steps=["],
        ["train", "{}", "--steps", "5"],
        ["train", "none.yaml"],
        ["train", "--config", "{}"],
        ["prepare", "{}", "model.plan=foo"],
        ["compare", "{}", "--vary", "model.k=8,16", "train.lr=nan"],
        ["compare", "{}"],
        ["evaluate", "no-such-run"],
        ["evaluate", "no-such-run", "--part", "some"],
        ["predict", "no-such-run", "text"],
        ["runs", "no-such-folder"],
        ["fit"],
        ["bench", "grid", "--lengths", "a"],
        ["bench", "grid", "--rounds", "0"],
        ["bench", "growth", "--out", "/"],
        ["bench", "decode", "--contexts", "-1"],
        ["bench", "grid", "--threads", "100000"],
        ["bench", "attention", "--modes", "singing"],
        ["bench", "growth", "--k", "1000"],
        ["spectrum", "model", "--text", "no-such-file"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_told_before_anything_heavy_is_imported(tmp_path, arguments):
    path = str(write(tmp_path, GOOD))
    code, said, heavy = imported_by([path if one == "{}" else one for one in arguments])
    assert code == "2"
    assert said.startswith("linformer: ")
    assert said.count("\n") == 1
    assert heavy - {"numpy"} == set()


def test_commands_that_ask_a_model_import_only_what_they_need(trained, tmp_path):
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents/a.txt").write_text("two bird three bird")
    model, index = save_model(tmp_path / "model"), str(tmp_path / "index")
    for words in (
        ["predict", str(trained.with_name("run")), "a <mask>og"],
        ["index", str(tmp_path / "documents"), "--model", str(model), "--out", index],
        ["search", index, "two bird"],
    ):
        code, _, heavy = imported_by(words, NOT_FOR_ANSWERS)
        assert (code, heavy) == ("0", set()), words[0]


def test_every_command_has_help():
    """Each command with its options, which a wrong default or type would break."""
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert {"train", "evaluate", "predict", "compare", "export", "report"} <= set(names)
