"""Completion for shells: `--show-completion` and `--install-completion`, with the shell's name.

typer's own options of these names take no value: they use the shell that runs the command, and
ignore a name that follows. Here a name that is given is used.
"""

from enum import Enum
from importlib import import_module

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script, install

from ..errors import UserError, user_input

PROGRAM = "linformer"
VARIABLE = "_LINFORMER_COMPLETE"
OPTIONS = ("--show-completion", "--install-completion")

completion_init()  # the scripts call the command, which answers in the shell's own form


class Shell(str, Enum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"
    pwsh = "pwsh"


def with_shell(arguments: list[str]) -> list[str]:
    """Add the name of the shell that runs this process where an option comes without one."""
    if arguments and arguments[0] in OPTIONS and arguments[1:2] in ([], ["--help"]):
        return [arguments[0], _detected(arguments[0]), *arguments[1:]]
    return arguments


def show(shell: Shell | None) -> None:
    """Callback of `--show-completion`."""
    if shell is not None:
        script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value)
        typer.echo(script)
        raise typer.Exit


def install_for(shell: Shell | None) -> None:
    """Callback of `--install-completion`."""
    if shell is not None:
        with user_input(f"cannot install the completion for {shell.value}"):
            _, path = install(shell=shell.value, prog_name=PROGRAM, complete_var=VARIABLE)
        typer.echo(f"The completion for {shell.value} is in {path}. Start a new shell to use it.")
        raise typer.Exit


def _detected(option: str) -> str:
    known = [shell.value for shell in Shell]
    try:
        name = str(import_module("shellingham").detect_shell()[0]).lower()
    except Exception:  # not installed, or a process that no shell has started
        name = "unknown"
    if name not in known:
        raise UserError(
            f"{option} needs the name of a shell, for the one that runs this is {name!r}: "
            f"linformer {option} {'|'.join(known)}"
        )
    return name
