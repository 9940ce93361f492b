"""The command `linformer`: versions, help, mistakes, and what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import linformer_kit
from linformer_kit.cli import main


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_the_installed_command_tells_its_version():
    command = Path(sys.executable).with_name("linformer")
    answer = subprocess.run([command, "--version"], capture_output=True, text=True)
    assert answer.returncode == 0
    assert answer.stdout.startswith(f"linformer-kit {linformer_kit.__version__} (torch ")


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_without_a_command_it_shows_what_there_is(capsys, arguments):
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "bench" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nope"], "--nope"),
        (["bench", "grow"], "grow"),
        (["bench", "growth", "--rounds", "many"], "--rounds"),
        (["bench", "growth", "--rounds", "0"], "'--rounds'"),
        (["bench", "growth", "--rounds", "-17"], "-17"),
        (["bench", "growth", "--lengths", "5,a"], "--lengths takes whole numbers"),
        (["bench", "growth", "--lengths", ""], "--lengths takes whole numbers"),
        (["bench", "growth", "--lengths", "64"], "k must be at most the length"),
        (["bench", "growth", "--seed", "-1"], "--seed"),
        (["bench", "attention", "--quick", "--k", "2048"], "k must be at most the length"),
        (["bench", "attention", "--quick", "--heads", "3"], "dim must be divisible"),
        (["bench", "attention", "--modes", "trainin"], "Did you mean 'training'?"),
        (["bench", "attention", "--dropout", "2"], "dropout must be at least 0 and below 1"),
        (["evaluate", "."], "is not a run"),
        (["predict", ".", "x"], "is not a run"),
        (["runs", "no-such-folder"], "there is no folder"),
        (["train", "none.yaml"], "cannot read the configuration none.yaml"),
        (["compare", "none.yaml"], "compare needs at least one --vary"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("linformer: ")
    assert err.count("\n") == 1
    assert message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["file/records.jsonl", "."])
def test_a_path_that_cannot_be_written_is_one_line_and_exit_code_2(capsys, tmp_path, out):
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "bench", "growth", "--out", str(tmp_path / out))
    assert code == 2
    assert err.startswith("linformer: cannot write ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_its_packages_it_says_how_to_install_them(package):
    code = (
        f"import sys; sys.modules[{package!r}] = None; from linformer_kit.cli import main; main()"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 1
    assert answer.stderr == (
        f"linformer: the command line needs {package}: pip install 'linformer-kit[cli]'\n"
    )
