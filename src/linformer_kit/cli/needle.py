"""`linformer evaluate MODEL --needle`: the needle test of a model that gives vectors."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from ..errors import UserError, user_input
from .bench import check_out, open_records, print_plainly, progress_line, tell_where
from .options import whole_numbers
from .sheets import show_sheets

if TYPE_CHECKING:
    from ..config.on_overflow import OnOverflow

OUT = Path("results/needle.jsonl")


def needle(
    path: Path,
    *,
    which: str,
    lengths: str | None,
    depths: int | None,
    documents: int | None,
    seed: int | None,
    on_overflow: str | None,
    out: Path | None,
) -> None:
    """Test a run of the task embed, or a folder of sentence-transformers or of an encoder."""
    given: dict[str, Any] = {
        "lengths": None if lengths is None else whole_numbers("lengths", lengths),
        "depths": depths,
        "documents": documents,
        "seed": seed,
    }
    out = OUT if out is None else out
    check_out(out)
    import torch

    from ..evidence.analysis import needle_view
    from ..evidence.analysis.needle import NeedleOptions, needle_test
    from ..measure.machine import describe
    from ..search.embedder import Embedder

    folder, policy = _model(path, which, on_overflow)
    options = NeedleOptions(
        policy=policy, **{name: value for name, value in given.items() if value is not None}
    )
    embedder = Embedder(folder, plain=True)
    if embedder.note is not None:
        typer.echo(f"linformer: {embedder.note}", err=True)
    with open_records(out) as file, progress_line(Console(stderr=True)) as say:
        with user_input("needle"):
            machine = describe(seed=options.seed, threads=torch.get_num_threads())
            record = needle_test(embedder, options, name=str(path), machine=machine, say=say)
        file.append(record)
    words = needle_view.in_words(record)
    if not sys.stdout.isatty():
        typer.echo(f"linformer: {words}", err=True)
        typer.echo(json.dumps(record))
        return
    console = Console()
    show_sheets(console, [needle_view.sheet(record)])
    print_plainly(console, words)
    tell_where(console, file, stopped=False)


def _model(path: Path, which: str, on_overflow: str | None) -> tuple[Path, "OnOverflow"]:
    """The folder of the model, and how it reads what is too long for it."""
    from ..config.on_overflow import policy_for
    from ..evidence.analysis.needle import POLICIES
    from ..runs.folder import RunFolder

    asked = next((one for one in POLICIES if one == on_overflow), None)
    if on_overflow is not None and asked is None:
        raise UserError(
            f"--on-overflow must be {' or '.join(POLICIES)} with --needle: got {on_overflow!r}."
        )
    if not (path / "run.json").is_file():
        if which != "best":
            raise UserError(f"--model chooses a model of a run: got {which} for {path}.")
        return path, asked or "truncate"  # as sentence-transformers reads
    run = RunFolder.existing(path)
    if run.config().task != "embed":
        raise UserError(
            "--needle is for models that give vectors (task: embed): got a run of the task "
            f"{run.config().task!r}."
        )
    own = policy_for("predict", run.config())
    return run.model_folder(which), asked or (own if own in POLICIES else "truncate")
