"""The commands and how they end: `linformer`, `linformer bench ...`, `linformer train ...`.

Nothing here and in the modules of commands imports torch when they are imported: the help and a
mistake in a configuration are told before that.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

import linformer_kit

from . import (
    analysis,
    bench,
    compare,
    completion,
    configs,
    convert,
    evaluate,
    export,
    predict,
    report,
    runs,
    search,
    serve,
    suggestions,
    train,
)
from .border import Ending, Escaped, end, ending_of
from .exit_codes import MISTAKE
from .help import PlainHelp

# What typer raises for an option that does not exist or a value that does not parse. It is not
# exported, and where it lives depends on the version.
UsageError = cast("type[Exception]", typer.BadParameter.__base__)


class Escaping:
    """A command whose exceptions all reach `run`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except (KeyboardInterrupt, EOFError, OSError) as error:
            raise Escaped(error) from error


class Command(PlainHelp, Escaping, TyperCommand):
    """For a program of one command."""


class Group(PlainHelp, Escaping, TyperGroup):
    """Suggests a command for a wrong name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            known, below = self.list_commands(ctx), _below(self, ctx)
            hint = suggestions.command(ctx.command_path, name, known, below)
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)


def _below(group: Any, context: Any) -> dict[str, list[str]]:
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {
        name: list(command.commands)
        for name, command in commands.items()
        if isinstance(command, TyperGroup)
    }


app = typer.Typer(
    name="linformer",
    help=linformer_kit.__doc__,
    cls=Group,
    add_completion=False,  # completion.py has options of its own
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench", cls=Group)
for command in (
    configs.configs,
    train.prepare,
    train.train,
    evaluate.evaluate,
    compare.compare,
    predict.predict,
    runs.runs,
    convert.convert,
    export.export,
    *analysis.COMMANDS,
    *search.COMMANDS,
    serve.serve,
    report.report,
):
    app.command()(command)
for registered in (*app.registered_commands, *bench.app.registered_commands):
    registered.cls = Command


def run(
    arguments: Sequence[str] | None,
    program: typer.Typer = app,
    name: str = completion.PROGRAM,
) -> int:
    """The exit code of a command line, by default that of this process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = program(args=completion.with_shell(given), prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BaseException as error:
        caught = error.error if isinstance(error, Escaped) else error
    # Not inside the block above: the traceback of a bug is then that of the bug alone.
    if isinstance(caught, UsageError):
        return end(Ending(MISTAKE, _usage(caught, given)))
    ending = ending_of(caught)
    if ending is None:
        raise caught
    return end(ending)


def _usage(error: Any, arguments: Sequence[str]) -> str:
    """What typer says, with what was received, or with what was probably meant."""
    text = " ".join(str(error.format_message()).split()).replace(": Value error, ", ": ")
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if name and context is not None and text.startswith("No such option"):
        hint = suggestions.option(name, context, arguments)
        return f"No such option {name} in {context.command_path!r}. {hint}"
    for option in getattr(getattr(error, "param", None), "opts", ()):
        value = suggestions.value_of(option, arguments)
        if value is not None and "got" not in text and f"'{value}'" not in text:
            return f"{text.rstrip('.')}: got {value!r}."
    return text


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"linformer-kit {linformer_kit.__version__} (torch {_torch_version()})")
        raise typer.Exit


def _torch_version() -> str:
    """Without importing it, which takes a second."""
    try:
        return version_of("torch")
    except PackageNotFoundError:
        return "not installed"


@app.callback(invoke_without_command=True)
def linformer(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    show_completion: Annotated[
        completion.Shell | None,
        typer.Option(
            help="Print the completion for a shell, by default the one that runs this.",
            callback=completion.show,
            is_eager=True,
        ),
    ] = None,
    install_completion: Annotated[
        completion.Shell | None,
        typer.Option(
            help="Install the completion for a shell, by default the one that runs this.",
            callback=completion.install_for,
            is_eager=True,
        ),
    ] = None,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
