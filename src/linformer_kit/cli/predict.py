"""`linformer predict`: the answers of a model to texts, a file or one long input."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import limits
from ..config.answer_options import TASKS, TEMPERATURES, check_temperature
from ..errors import UserError
from ..measure import quantities
from .libraries import install_hint, silence_libraries
from .options import OnOverflow, Run

TABLES = (".csv", ".tsv", ".parquet")  # what `predict --file` does not read
JSON = (".jsonl", ".ndjson", ".json")  # a list of numbers a line: features, not texts


def _temperature(value: float | None) -> float | None:
    try:
        return None if value is None else check_temperature(value)
    except UserError as error:
        raise typer.BadParameter(str(error)) from error


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
            help="0, the default, takes the likeliest token; else {:g} to {:g} (clm).".format(
                *TEMPERATURES
            ),
            callback=_temperature,
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
    """Fill a <mask>, classify, find spans, give vectors, continue a text, or translate.

    JSON when not on a terminal.
    """
    with install_hint():
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
        of_inputs = quantities.of(failed + empty, number, "input")
        typer.echo(f"linformer: {of_inputs} not answered.", err=True)
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
