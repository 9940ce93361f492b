"""`linformer runs`: the runs in a folder, with their scores."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import UserError
from .libraries import install_hint


def runs(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
) -> None:
    """List the runs with their scores."""
    with install_hint():
        from ..evaluate.show import runs_table, summaries

        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}.")
        found = summaries(folder)
    if not sys.stdout.isatty():
        for summary in found:
            typer.echo(json.dumps(summary))
    elif found:
        Console().print(runs_table(found))
    else:
        typer.echo(f"{folder} holds no runs.")
