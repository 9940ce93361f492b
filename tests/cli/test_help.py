"""The help of every command at 80 columns: nothing cut, lost to markup or foreign to a reader."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from linformer_kit.cli.app import app

from .test_main import run


def commands(command: Any, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found = {words: command}
    for name, below in getattr(command, "commands", {}).items():
        found |= commands(below, (*words, name))
    return found


COMMANDS = commands(typer.main.get_command(app))


def in_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("columns", [80, 60])
def test_the_help_has_every_word_of_its_source(capsys, monkeypatch, words, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = run(capsys, *words, "--help")
    assert (code, err) == (0, "")
    assert not re.search(r"[{}…│]|<bool>|list\[| range>", out)
    assert max(map(len, out.splitlines())) <= 80
    told, command = in_one_line(out), COMMANDS[words]
    assert in_one_line(command.help or "") in told
    for below in getattr(command, "commands", {}).values():
        assert in_one_line(below.help.split("\n\n")[0]) in told
    for param in command.params:
        assert in_one_line(param.help or "") in told
        for name in (*param.opts, *param.secondary_opts):
            assert param.param_type_name == "argument" or f" {name}" in out
        flag = getattr(param, "is_flag", False)
        default = getattr(param.default, "value", param.default)
        if default not in (None, "") and not flag and not callable(default):
            assert re.search(rf"\[default: {re.escape(str(default))}[;\]]", told), param.name


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("", "linformer [OPTIONS] COMMAND [ARGS]..."),
        ("predict", "linformer predict [OPTIONS] RUN [TEXTS]..."),
        ("train", "linformer train [OPTIONS] CONFIG [KEY=VALUE]..."),
        ("report", "linformer report [OPTIONS] PATHS..."),
        ("runs", "linformer runs [OPTIONS] [FOLDER]"),
        ("serve", "linformer serve [OPTIONS] [NAME=]FOLDER..."),
    ],
)
def test_the_usage(capsys, words, usage):
    assert run(capsys, *words.split(), "--help")[1].splitlines()[0] == f"Usage: {usage}"
