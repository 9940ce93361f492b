"""`linformer convert`: a pretrained encoder as a Linformer that reads longer inputs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..config import limits
from ..errors import UserError, user_input
from ..evidence.analysis.texts import check_text
from .bench import progress_line
from .exit_codes import STOPPED
from .libraries import install_hint, silence_libraries
from .options import finite

if TYPE_CHECKING:
    from ..convert.conversion import Conversion

FROM_FILE = ("model", "out", "source", "option")  # the options of a conversion by --from
TRAINING = ("batch_size", "lr", "save_every")  # these have an effect with --steps or --minutes only
AUTO: Literal["auto"] = "auto"


def convert(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="The folder of a pretrained model, its name on the hub, or with --from a file."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens that the result reads; by default as many as the model.",
            min=1,
            max=limits.LENGTH,
        ),
    ] = None,
    k: Annotated[
        str, typer.Option(help="Compressed rows at the full length; auto: for each layer.")
    ] = "128",
    window: Annotated[
        int,
        typer.Option(
            help="Positions on each side that are seen exactly.", min=0, max=limits.LENGTH
        ),
    ] = 64,
    global_tokens: Annotated[
        int,
        typer.Option(
            help="First positions that see and are seen by all exactly.", min=0, max=limits.LENGTH
        ),
    ] = 1,
    projection: Annotated[str, typer.Option(help="The kind of compression.")] = "mean",
    keep_full: Annotated[
        str,
        typer.Option(
            help="Layers that keep full attention, from 0, with commas; auto: where it matters."
        ),
    ] = "",
    positions: Annotated[
        str,
        typer.Option(help="How positions are extended: copy, interpolate or spread."),
    ] = "copy",
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A file of text, or python-docs, to train and to compare on; may be repeated."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Distil for this many steps.", min=1, max=limits.COUNT)
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Distil for this many minutes.", min=0.0, max=limits.MINUTES, callback=finite
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Rows of a step of training.", min=1, max=limits.BATCH)
    ] = 4,
    lr: Annotated[
        float, typer.Option(help="The highest learning rate.", min=0.0, max=100.0, callback=finite)
    ] = 5e-5,
    seed: Annotated[
        int, typer.Option(help="Of the order of rows and of masks.", min=0, max=limits.SEED)
    ] = 0,
    save_every: Annotated[
        int | None,
        typer.Option(
            help="Steps between checkpoints (default: a minute).", min=1, max=limits.COUNT
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would be done, time and memory; write nothing."),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write a page about the result: an HTML file.")
    ] = None,
    no_timing: Annotated[
        bool,
        typer.Option("--no-timing", help="Leave time and memory out of the page."),
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from", help="A checkpoint of linformer, linformer-pytorch or fairseq; same outputs."
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="With --from: what a checkpoint does not say, such as heads=8."),
    ] = None,
) -> None:
    """Turn a pretrained encoder into a Linformer: its weights, trained further or not at all."""
    with install_hint():
        if source is not None or option:
            _refuse_others(context)
            _convert_earlier(Path(model), source, option or [], out)
            return
        if steps is None and minutes is None:
            _refuse(context, TRAINING, "without --steps or --minutes: nothing is trained")
        if report is None:
            _refuse(context, ("no_timing",), "without --report")
        if dry_run:
            _refuse(context, ("report", "save_every"), "with --dry-run: nothing is written")
        if minutes == 0:
            raise UserError("--minutes must be above 0: got 0.")
        texts = tuple(text or ())
        for one in texts:
            check_text(one)
        rows = AUTO if k == AUTO else _number("k", k)
        full = AUTO if keep_full == AUTO else _numbers(keep_full)
        typer.echo("importing torch and transformers")  # takes seconds, on a busy machine a minute
        silence_libraries()
        from ..convert.conversion import Conversion, run_conversion

        job = Conversion(
            model=model,
            max_length=max_length,
            k=rows,
            window=window,
            global_tokens=global_tokens,
            projection=projection,
            keep_full=full,
            positions=positions,
            text=texts,
            steps=steps,
            minutes=minutes,
            batch_size=batch_size,
            lr=lr,
            seed=seed,
        )
        if dry_run:
            from ..convert.rehearsal import dry_run as rehearse

            typer.echo(rehearse(job, out, say=typer.echo))
            return
        if report is not None:
            from ..evidence.report.conversion import check_page

            check_page(report)
        record = run_conversion(job, out, say=typer.echo, save_every=save_every)
        if record is None:
            raise typer.Exit(STOPPED)
        length = record["settings"]["max_length"]
        what = "tokens" if record["how"] == "re-homed" else "positions"
        typer.echo(f"{out}: {record['result']}, reads {length:,} {what}.")
        _say_how_to_load(out, record["result"])
        if report is not None:
            _write_page(job, out, record, report, timing=not no_timing)


def _say_how_to_load(out: Path, kind: str) -> None:
    from ..convert.card import how_to_load

    lines = (line.partition("  #")[0] for line in how_to_load(out, kind, name=str(out)))
    typer.echo(f"Load it in Python: {'; '.join(lines)}")


def _write_page(
    job: "Conversion", out: Path, record: dict[str, Any], report: Path, *, timing: bool
) -> None:
    """Measure what the page needs and the record does not have, then write it."""
    from rich.console import Console

    from ..convert.measurements import measured
    from ..evidence.report.conversion import write_page

    if timing:
        typer.echo("measuring time and memory for the page; --no-timing leaves this out")
    with progress_line(Console(stderr=True)) as say:
        record = measured(job, out, record, timing=timing, say=say)
    typer.echo(write_page(record if timing else {**record, "cost": None}, report))
    typer.echo(f"wrote {report}")


def _refuse_others(context: typer.Context) -> None:
    """Refuse the options that have no effect with --from."""
    others = tuple(name for name in context.params if name not in FROM_FILE)
    _refuse(context, others, "with --from and --option: the checkpoint is converted as it is")


def _refuse(context: typer.Context, names: tuple[str, ...], why: str) -> None:
    """Refuse options that were given and have no effect."""
    for name in names:
        place = context.get_parameter_source(name)
        if place is not None and place.name == "COMMANDLINE":
            raise UserError(f"--{name.replace('_', '-')} has no effect {why}. Leave it out.")


def _convert_earlier(path: Path, source: str | None, options: list[str], out: Path) -> None:
    """A checkpoint of an earlier implementation, as it is."""
    from ..config import yaml_text
    from ..convert.earlier import convert_file
    from ..convert.teacher import check_new_folder, save_converted

    if source is None:
        raise UserError("--option belongs to --from linformer, linformer-pytorch or fairseq.")
    check_new_folder(out)
    given = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--option must be KEY=VALUE, such as heads=8: got {text!r}.")
        with user_input(f"--option {name} cannot be read"):
            given[name] = yaml_text.parse(value)
    with user_input(f"cannot convert {path}"):
        student = convert_file(path, source=source, **given)
    record = {"source": str(path), "from": source, "options": given}
    save_converted(student, None, out, source=str(path), record=record)
    typer.echo(f"{out}: {type(student).__name__} with the outputs of {path} ({source}).")
    _say_how_to_load(out, type(student).__name__)


def _number(option: str, given: str) -> int:
    try:
        found = int(given)
    except ValueError:
        found = -1
    if not 0 <= found <= limits.LENGTH:
        raise UserError(
            f"--{option} must be a whole number from 0 to {limits.LENGTH:,}, or auto: got "
            f"{given!r}."
        )
    return found


def _numbers(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in given.split(",") if part.strip())
    except ValueError:
        raise UserError(
            "--keep-full must be numbers of layers with commas, such as 0,5, or auto: got "
            f"{given!r}."
        ) from None
