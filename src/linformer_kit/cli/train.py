"""`linformer prepare` and `linformer train`.

What these need takes seconds to import, so each imports its own when it is called.
"""

import json
import sys
from typing import Annotated

import typer

from ..measure import quantities
from .exit_codes import STOPPED
from .libraries import install_hint, silence_libraries
from .options import Config, Overrides, Overwrite
from .progress import corpus_progress


def prepare(config: Config, overrides: Overrides = None) -> None:
    """Read the corpus, train the tokenizer and keep the tokens: what `train` does first."""
    with install_hint():
        from ..config.load import load

        settings = load(config, overrides or [])
        silence_libraries()
        from ..data.counts import notices
        from ..data.prepare import prepare as prepare_data

        with corpus_progress() as tell:
            prepared = prepare_data(settings, tell=tell)
    meta = prepared.meta
    if not sys.stdout.isatty():
        for part, counts in meta["parts"].items():
            for text in notices(part, counts, settings.data.max_length).values():
                typer.echo(f"linformer: {text}", err=True)
        typer.echo(json.dumps({"folder": str(prepared.folder), **meta}))
        return
    seconds = max(meta["seconds"]["all"], 1e-9)
    for part, counts in meta["parts"].items():
        typer.echo(
            f"{part}: {quantities.count(counts['documents'], 'document')}, "
            f"{quantities.count(counts['words'], 'word')}, "
            f"{quantities.count(counts['tokens'], 'token')}, "
            f"{quantities.count(counts['rows'], 'row')}"
            + (f", {counts['empty']:,} empty left out" if counts["empty"] else "")
        )
        for text in notices(part, counts, settings.data.max_length).values():
            typer.echo(text)
    total = sum(counts["bytes"] for counts in meta["parts"].values())
    typer.echo(f"{total / 1e6:,.1f} MB in {seconds:,.1f} s, {total / 1e6 / seconds:,.1f} MB/s")
    typer.echo(f"kept in {prepared.folder}")


def train(
    config: Config,
    overrides: Overrides = None,
    overwrite: Overwrite = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen and how long it would take.")
    ] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Log to Weights & Biases too.")] = False,
) -> None:
    """Train, or resume, the run of a configuration. Under torchrun on many processes."""
    with install_hint():
        from ..config.load import load

        settings = load(config, overrides or [])
        silence_libraries()
        if dry_run:
            from ..train.dry_run import dry_run as rehearse
            from ..training.layout import world

            with corpus_progress() as tell:
                text = rehearse(settings, tell=tell)
            if world()[0] == 0:
                typer.echo(text)
            return
        from ..train.run import train as train_run

        with corpus_progress() as tell:
            folder = train_run(settings, overwrite=overwrite, wandb=wandb, tell=tell)
    if folder is None:
        raise typer.Exit(STOPPED)
