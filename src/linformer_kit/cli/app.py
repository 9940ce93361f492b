"""The commands and how they end: `linformer`, `linformer bench ...`, `linformer train ...`."""

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import torch
import typer

import linformer_kit

from ..errors import UserError
from . import analysis, bench, cells, export, keras_time, onnx_time, report, toolkit

# What typer raises for an option that does not exist or a value that does not parse. It is not
# exported, and where it lives depends on the version.
UsageError = cast("type[Exception]", typer.BadParameter.__base__)

app = typer.Typer(
    name="linformer",
    help=linformer_kit.__doc__,
    pretty_exceptions_enable=False,
)
for measure in cells.COMMANDS:
    bench.app.command()(measure)
app.add_typer(bench.app, name="bench")
toolkit.add_to(app)
app.command()(export.export)
app.command("keras-time")(keras_time.keras_time)
app.command("onnx-time")(onnx_time.onnx_time)
for look in (*analysis.COMMANDS, report.report):
    app.command()(look)


def run(arguments: Sequence[str] | None) -> int:
    """The exit code of a command line, by default that of this process."""
    try:
        code = app(args=arguments, prog_name="linformer", standalone_mode=False)
    except UserError as error:
        sys.stderr.write(f"linformer: {error}\n")
        return 2
    except UsageError as error:
        sys.stderr.write(f"linformer: {_text(error)}\n")
        return 2
    return code if isinstance(code, int) else 0


def _text(error: Exception) -> str:
    format_message = getattr(error, "format_message", error.__str__)
    return " ".join(str(format_message()).split())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"linformer-kit {linformer_kit.__version__} (torch {torch.__version__})")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def linformer(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
