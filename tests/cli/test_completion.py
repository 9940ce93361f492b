"""Completion is that of the shell which is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINFORMER = Path(sys.executable).with_name("linformer")
SCRIPTS = {
    "bash": "complete -o default -F",
    "zsh": "#compdef linformer",
    "fish": "complete --command linformer",
    "powershell": "Register-ArgumentCompleter",
    "pwsh": "Register-ArgumentCompleter",
}


def linformer(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINFORMER, *arguments], capture_output=True, text=True, env=os.environ | environment
    )


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_that_of_the_shell_that_is_named(shell):
    answer = linformer("--show-completion", shell)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert SCRIPTS[shell] in answer.stdout
    assert "_LINFORMER_COMPLETE" in answer.stdout
    assert linformer(f"--show-completion={shell}").stdout == answer.stdout


def test_a_shell_that_does_not_exist_is_one_line():
    answer = linformer("--show-completion", "tcsh")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.count("\n") == 1
    assert "tcsh" in answer.stderr
    assert "zsh" in answer.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_without_a_name_it_is_the_shell_that_runs_it():
    answer = subprocess.run(
        ["bash", "-c", f"{LINFORMER} --show-completion; true"], capture_output=True, text=True
    )
    assert SCRIPTS["bash"] in answer.stdout


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/linformer.sh"),
        ("zsh", ".zfunc/_linformer"),
        ("fish", ".config/fish/completions/linformer.fish"),
    ],
)
def test_installing_writes_the_script_of_the_shell_that_is_named(tmp_path, shell, file):
    answer = linformer("--install-completion", shell, HOME=str(tmp_path))
    assert (answer.returncode, answer.stderr) == (0, "")
    assert SCRIPTS[shell] in (tmp_path / file).read_text()
    assert shell in answer.stdout


def test_installing_where_nothing_can_be_written_is_one_line(tmp_path):
    (tmp_path / "home").write_text("")
    answer = linformer("--install-completion", "zsh", HOME=str(tmp_path / "home"))
    assert answer.returncode == 2
    assert answer.stderr.startswith("linformer: cannot install the completion for zsh")
    assert answer.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_completes_a_command_in_bash(tmp_path):
    script = tmp_path / "script"
    script.write_text(linformer("--show-completion", "bash").stdout)
    code = (
        f"source {script}; COMP_WORDS=(linformer spect); COMP_CWORD=1; "
        '_linformer_completion linformer; echo "${COMPREPLY[@]}"'
    )
    path = f"{LINFORMER.parent}{os.pathsep}{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    assert answer.stdout == "spectrum\n", answer.stderr


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["spectr"], "spectrum"),
        (["bench", "gri"], "grid"),
        (["bench", "grid", "--tok"], "--tokens"),
    ],
)
def test_the_shell_completes_commands_and_options(typed, offered):
    answer = linformer(
        _LINFORMER_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(["linformer", *typed]),
        COMP_CWORD=str(len(typed)),
    )
    assert offered in answer.stdout.split()
