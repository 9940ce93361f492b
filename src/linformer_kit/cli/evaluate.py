"""`linformer evaluate`: score a model of a run, or run the needle test."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..config import limits
from ..errors import UserError, one_of
from .libraries import install_hint, silence_libraries
from .options import OnOverflow, Run

PARTS = ("train", "validation", "test")


def evaluate(
    run: Run,
    part: Annotated[
        str | None,
        typer.Option(help="train, validation or test (by default test, if there is one)."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Which model: best, last, or the step of a checkpoint.")
    ] = "best",
    without: Annotated[
        str | None,
        typer.Option(help="rows or window: switch one of the two off, to see what it contributes."),
    ] = None,
    on_overflow: OnOverflow = None,
    needle: Annotated[
        bool,
        typer.Option(
            "--needle",
            help="The needle test, also of a model folder: is a sentence found again that is "
            "hidden in a long document? (embed)",
        ),
    ] = False,
    lengths: Annotated[
        str | None,
        typer.Option(help="Tokens of documents, with commas (default: 256 to 32768; --needle)."),
    ] = None,
    depths: Annotated[
        int | None,
        typer.Option(help="How many depths (default: 5; --needle).", min=1, max=limits.REPEATS),
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(
            help="For each depth and length (default: 5; --needle).", min=1, max=limits.REPEATS
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the documents (--needle).", min=0, max=limits.SEED)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where the record is appended (default: results/needle.jsonl; --needle)."
        ),
    ] = None,
) -> None:
    """Score a model of a run; every number that can be told."""
    if needle:
        for name, value in (("part", part), ("without", without)):
            if value is not None:
                raise UserError(f"--{name} has no effect with --needle: got {value}.")
        with install_hint():
            silence_libraries()
            from .needle import needle as needle_test

            needle_test(
                run,
                which=model,
                lengths=lengths,
                depths=depths,
                documents=documents,
                seed=seed,
                on_overflow=on_overflow,
                out=out,
            )
        return
    for name, given in (
        ("lengths", lengths), ("depths", depths), ("documents", documents), ("seed", seed),
        ("out", out),
    ):  # fmt: skip
        if given is not None:
            raise UserError(f"--{name} has no effect without --needle: got {given}.")
    with install_hint():
        from ..config.on_overflow import policy_for
        from ..runs.folder import RunFolder

        if part is not None:
            one_of("--part", part, PARTS)
        if without is not None:
            one_of("--without", without, ("rows", "window"))
        folder = RunFolder.existing(run)
        policy_for("evaluate", folder.config(), on_overflow)
        silence_libraries()
        from ..evaluate.evaluation import evaluate_run
        from ..evaluate.show import show

        found = evaluate_run(
            folder,
            part=part,  # type: ignore[arg-type]
            which=model,
            without=without,  # type: ignore[arg-type]
            on_overflow=on_overflow,
        )
        if sys.stdout.isatty():
            Console().print(show(found))
