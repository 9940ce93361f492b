"""`linformer prepare`, `train`, `evaluate`, `compare`, `predict` and `runs`.

What these need takes seconds to import, so each imports its own when it is called.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..config import limits
from ..config.answer_options import TASKS
from ..errors import UserError
from .exit_codes import STOPPED
from .options import finite

TABLES = (".csv", ".tsv", ".parquet")  # what `predict --file` does not read
JSON = (".jsonl", ".ndjson", ".json")  # a list of numbers a line: features, not texts
PARTS = ("train", "validation", "test")

Config = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="A YAML file, or the name of a shipped one (`linformer configs`)."
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="For example train.steps=100.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
OnOverflow = Annotated[
    str | None,
    typer.Option(
        help="For texts longer than the model reads: error, truncate, chunk or extend (by default "
        "as the run treats its data)."
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Remove an existing run of the same name first.")
]


def add_to(app: typer.Typer) -> None:
    """Make these commands of `linformer`."""
    for command in (configs, prepare, train, evaluate, compare, predict, runs):
        app.command()(command)


def configs(
    name: Annotated[str | None, typer.Argument(help="The one to copy.")] = None,
    to: Annotated[
        Path | None, typer.Option(help="The file or folder to copy it to (default: here).")
    ] = None,
) -> None:
    """List the shipped configurations, or copy one to change it."""
    with packages():
        from ..config import shipped

        if name is not None:
            typer.echo(f"copied to {shipped.copy(name, Path() if to is None else to)}")
            return
        if to is not None:
            raise UserError("--to needs the name of a configuration: linformer configs quick-mlm.")
        width = max(map(len, shipped.names()))
        for one in shipped.names():
            typer.echo(f"{one:{width}}  {shipped.summary(one)}")


def prepare(config: Config, overrides: Overrides = None) -> None:
    """Read the corpus, train the tokenizer and keep the tokens: what `train` does first."""
    with packages():
        from ..config.load import load

        settings = load(config, overrides or [])
        silence_libraries()
        from ..data.counts import notices
        from ..data.prepare import prepare as prepare_data

        with _reading() as tell:
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
            f"{part}: {counts['documents']:,} documents, {counts['words']:,} words, "
            f"{counts['tokens']:,} tokens, {counts['rows']:,} rows"
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
    """Train, or go on with, the run of a configuration. Under torchrun on many processes."""
    with packages():
        from ..config.load import load

        settings = load(config, overrides or [])
        silence_libraries()
        if dry_run:
            from ..train.dry_run import dry_run as rehearse
            from ..training.layout import world

            with _reading() as tell:
                text = rehearse(settings, tell=tell)
            if world()[0] == 0:
                typer.echo(text)
            return
        from ..train.run import train as train_run

        with _reading() as tell:
            folder = train_run(settings, overwrite=overwrite, wandb=wandb, tell=tell)
    if folder is None:
        raise typer.Exit(STOPPED)


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
        typer.Option(help="How many depths (default: 5; --needle).", min=1, max=limits.COUNT),
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(
            help="For each depth and length (default: 5; --needle).", min=1, max=limits.COUNT
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
        with packages():
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
    with packages():
        from ..config.on_overflow import policy_for
        from ..runs.folder import RunFolder

        if part not in (None, *PARTS):
            raise UserError(f"--part must be one of {', '.join(PARTS)}: got {part!r}.")
        if without not in (None, "rows", "window"):
            raise UserError(f"--without must be rows or window: got {without!r}.")
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
            help="Train each variant with this many seeds; a verdict needs two.", min=1, max=1000
        ),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the comparison (default: RUN-compare).")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Train variants of a configuration; one table and plots of how they compare."""
    with packages():
        from ..compare.variants import variants
        from ..config.load import load

        variants(vary or [])
        load(config, overrides or [])
        silence_libraries()
        from ..compare.comparison import compare as compare_runs

        report = compare_runs(
            config,
            overrides or [],
            vary or [],
            seeds=seeds,
            out=out,
            overwrite=overwrite,
            reading=_reading,
            say=lambda line: typer.echo(line, err=True),
        )
    if report is None:
        raise typer.Exit(STOPPED)
    typer.echo(report)


def predict(
    run: Run,
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts; by default standard input.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="A file with a text a line; with --out also CSV, TSV, JSON lines, parquet, a "
            "folder of texts, or - for standard input."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where answers are written, beside the columns of --file; resumable."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of --file with the texts (by default the run's).")
    ] = None,
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="Of --file: text, csv, tsv, jsonl, parquet (by default its suffix)."
        ),
    ] = None,
    tokens_per_batch: Annotated[
        int | None,
        typer.Option(help="Tokens in a batch, with --out.", min=1, max=limits.LENGTH),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Which model: best, last, or the step of a checkpoint.")
    ] = "best",
    top: Annotated[
        int | None,
        typer.Option(
            help="How many answers, by default 5 (mlm, classify).", min=1, max=limits.VOCABULARY
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="How long to write (clm, translate).", min=1, max=limits.LENGTH),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0, the default, takes the likeliest token (clm).",
            min=0.0,
            max=100.0,
            callback=finite,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of what is drawn (clm).", min=0, max=limits.SEED)
    ] = None,
    redact: Annotated[
        bool,
        typer.Option("--redact", help="The text with [label] in the place of each span (tag)."),
    ] = False,
    size: Annotated[
        int | None,
        typer.Option(
            help="Give only this many components of a vector (embed).", min=1, max=limits.WIDTH
        ),
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option(help="Answer with this file of `linformer export`.")
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="A .npy file with the tokens, or features, of one input of any length, read block "
            "by block (classify)."
        ),
    ] = None,
    on_overflow: OnOverflow = None,
) -> None:
    """Fill a <mask>, classify, find spans, give vectors, go on with a text, or translate.

    JSON when not on a terminal.
    """
    with packages():
        from ..config.on_overflow import policy_for
        from ..runs.folder import RunFolder

        folder = RunFolder.existing(run)
        policy_for("predict", folder.config(), on_overflow)
        chosen = _effective(
            folder.config().task,
            top=top,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            redact=redact or None,
            size=size,
        )
        silence_libraries()
        if tokens is not None:
            for given_too, name in (
                (texts, "texts"), (file, "--file"), (out, "--out"), (onnx, "--onnx"),
                (on_overflow, "--on-overflow"),
            ):  # fmt: skip
                if given_too:
                    raise UserError(f"--tokens has its own input: leave {name} out.")
            from ..predict.streamed import predict_streamed

            streamed = predict_streamed(folder, tokens, which=model, **chosen)
            terminal = sys.stdout.isatty()
            typer.echo(streamed.text() if terminal else json.dumps(streamed.values()))
            return
        if out is not None:
            if texts:
                raise UserError(
                    "--out is for --file or standard input, not for texts: leave it out."
                )
            from .predict_files import answer_file

            answer_file(
                folder,
                "-" if file is None else str(file),
                out,
                column=column,
                file_format=file_format,
                tokens_per_batch=tokens_per_batch,
                which=model,
                options=chosen,
                onnx=onnx,
                on_overflow=on_overflow,
            )
            return
        for name, value in (
            ("column", column), ("format", file_format), ("tokens-per-batch", tokens_per_batch),
        ):  # fmt: skip
            if value is not None:
                raise UserError(f"--{name} has no effect without --out: got {value}.")
        from ..predict.answers import Options, predict_texts

        options = Options(**chosen)
        reads_text = (folder.model_folder(model) / "tokenizer.json").is_file()
        given = _texts(texts, file, refused=TABLES + JSON if reads_text else TABLES)
        answers = predict_texts(
            folder, given, which=model, options=options, onnx=onnx, on_overflow=on_overflow
        )
        number = empty = failed = 0
        for number, answer in enumerate(answers, start=1):
            if answer.problem is not None:
                blank = not answer.given.strip()
                empty, failed = empty + blank, failed + (not blank)
                typer.echo(f"linformer: input {number}: {answer.problem}", err=True)
            for note in answer.notes:
                typer.echo(f"linformer: input {number}: {note}", err=True)
            if answer.problem is None or not sys.stdout.isatty():
                shown = answer.text() if sys.stdout.isatty() else json.dumps(answer.values())
                typer.echo(shown)
    if failed or empty == number:  # a blank line among others is reported, and no mistake
        typer.echo(f"linformer: {failed + empty} of {number} inputs were not answered.", err=True)
        raise typer.Exit(2)


def _effective(task: str, **options: Any) -> dict[str, Any]:
    """The options that were given; one that has no effect in this task is refused."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if task not in TASKS[name]:
            raise UserError(
                f"{option} has no effect in a run of the task {task!r}, only in "
                f"{' and '.join(map(repr, TASKS[name]))}. Leave it out."
            )
    if "seed" in given and not given.get("temperature"):
        raise UserError(
            "--seed has no effect at temperature 0, where nothing is drawn. Add for example "
            "--temperature 0.8, or leave it out."
        )
    return given


def runs(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
) -> None:
    """List the runs with their scores."""
    with packages():
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


@contextmanager
def packages(extra: str = "train") -> Iterator[None]:
    """Say which package is missing and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "linformer_kit":
            raise
        raise UserError(f"this needs {package}: pip install 'linformer-kit[{extra}]'") from error


def silence_libraries() -> None:
    """Switch off the progress bars of transformers and datasets; importing them takes seconds."""
    from datasets import disable_progress_bars
    from transformers.utils import logging

    logging.disable_progress_bar()
    disable_progress_bars()


@contextmanager
def _reading() -> Iterator[Callable[[str, int, int], None]]:
    """A bar of bytes on a terminal; elsewhere a line on stderr now and then."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task: Any = None

        def tell(what: str, done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = bar.add_task(what, total=None)
            bar.update(task, description=what, completed=done, total=total or None)
            if total and done >= total:
                bar.stop()  # what follows writes to the terminal itself

        yield tell


def _lines() -> Callable[[str, int, int], None]:
    import time

    last = time.monotonic()

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            share = f"{100 * done / total:.0f} %, " if total else ""
            sys.stderr.write(f"{what}: {share}{done / 1e6:,.0f} MB\n")

    return tell


def _texts(
    texts: list[str] | None, file: Path | None, *, refused: tuple[str, ...]
) -> Iterator[str]:
    if texts and file is not None:
        raise UserError("give texts or --file, not both.")
    if texts:
        yield from texts
    elif file is not None:
        from ..data.files import Limits, kind_of, lines

        if file.is_dir():
            raise UserError(f"{file} is a folder: name the file for its answers with --out.")
        if not file.is_file():
            raise UserError(f"there is no file {file}.")
        if kind_of(file) in refused:
            raise UserError(
                f"{file} is a table, and without --out a text a line is read: its header and its "
                "separators would be read as text. Name the file for its answers with --out."
            )
        yield from (line.rstrip("\r\n") for line in lines(file, Limits()))
    else:
        yield from (line.rstrip("\r\n") for line in sys.stdin)
