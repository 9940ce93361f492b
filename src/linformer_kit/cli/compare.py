"""`linformer compare`: train variants of a configuration and compare them."""

from pathlib import Path
from typing import Annotated

import typer

from ..config import limits
from .exit_codes import STOPPED
from .libraries import install_hint, silence_libraries
from .options import Config, Overrides, Overwrite
from .progress import corpus_progress


def compare(
    config: Config,
    overrides: Overrides = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(help="A key and its values: model.k=64,128. Several are combined."),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(
            help="Train each variant with this many seeds; a verdict needs two.",
            min=1,
            max=limits.REPEATS,
        ),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the comparison (default: RUN-compare).")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Train variants of a configuration; one table and plots of how they compare."""
    with install_hint():
        from ..compare.variants import variants
        from ..config.load import load

        first = variants(vary or []).chosen[0]
        load(config, [*(overrides or []), *first.overrides])
        silence_libraries()
        from ..compare.comparison import compare as compare_runs

        report = compare_runs(
            config,
            overrides or [],
            vary or [],
            seeds=seeds,
            out=out,
            overwrite=overwrite,
            reading=corpus_progress,
            say=lambda line: typer.echo(line, err=True),
        )
    if report is None:
        raise typer.Exit(STOPPED)
    typer.echo(report)
