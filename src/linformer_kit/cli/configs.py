"""`linformer configs`: the shipped configurations."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from .libraries import install_hint


def configs(
    name: Annotated[str | None, typer.Argument(help="The one to copy.")] = None,
    to: Annotated[
        Path | None, typer.Option(help="The file or folder to copy it to (default: here).")
    ] = None,
) -> None:
    """List the shipped configurations, or copy one to change it."""
    with install_hint():
        from ..config import shipped

        if name is not None:
            typer.echo(f"copied to {shipped.copy(name, Path() if to is None else to)}")
            return
        if to is not None:
            raise UserError("--to needs the name of a configuration: linformer configs quick-mlm.")
        width = max(map(len, shipped.names()))
        for one in shipped.names():
            typer.echo(f"{one:{width}}  {shipped.summary(one)}")
