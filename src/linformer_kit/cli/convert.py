"""`linformer convert`: a pretrained encoder as a Linformer that reads longer inputs."""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError, user_input
from .toolkit import packages

FROM_FILE = ("model", "out", "source", "option")  # the options of a conversion by --from


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
        typer.Option(help="Tokens that the result reads; by default as many as the model.", min=1),
    ] = None,
    k: Annotated[int, typer.Option(help="Compressed rows at the full length.", min=0)] = 128,
    window: Annotated[
        int, typer.Option(help="Positions on each side that are seen exactly.", min=0)
    ] = 64,
    global_tokens: Annotated[
        int, typer.Option(help="First positions that see and are seen by all exactly.", min=0)
    ] = 1,
    projection: Annotated[str, typer.Option(help="The kind of compression.")] = "mean",
    keep_full: Annotated[
        str, typer.Option(help="Layers that keep full attention, from 0, with commas.")
    ] = "",
    positions: Annotated[
        str,
        typer.Option(help="How positions are extended: copy, interpolate or spread."),
    ] = "copy",
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Text to compare the result with the model on; may be repeated."),
    ] = None,
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
    """Turn a BERT-like encoder into a Linformer: the same weights, nothing is trained."""
    with packages():
        if source is not None or option:
            _refuse_others(context)
            _convert_earlier(Path(model), source, option or [], out)
            return
        from ..convert import convert as converted
        from ..convert.compare_outputs import compare_on_texts
        from ..convert.teacher import check_new_folder, load_teacher, save_converted

        check_new_folder(out)
        layers = _numbers(keep_full)
        texts = [_read(path) for path in text or []]
        teacher, tokenizer = load_teacher(model)
        if texts and tokenizer is None:
            raise UserError(f"--text needs a tokenizer, and {model} has none.")
        options = {
            "max_length": max_length,
            "k": k,
            "window": window,
            "global_tokens": global_tokens,
            "projection": projection,
            "full_layers": layers,
            "positions": positions,
        }
        with warnings.catch_warnings(record=True) as told, user_input(f"cannot convert {model}"):
            warnings.simplefilter("always", UserWarning)
            student = converted(teacher, **options)  # type: ignore[arg-type]
        record = {"source": model, "class": type(teacher).__name__, "options": options}
        for warning in told:
            typer.echo(str(warning.message), err=True)
        if texts:
            found = compare_on_texts(student, teacher, tokenizer, texts)
            record["agreement"] = found
            typer.echo(
                f"cosine to the original, on {found['pieces']} pieces of {found['length']} tokens: "
                f"embeddings {found['embedding_cosine']:.4f}, tokens {found['token_cosine']:.4f}"
            )
        save_converted(student, tokenizer, out, source=model, record=record)
        length = student.config.max_position_embeddings
        typer.echo(f"{out}: {type(student).__name__}, reads {length:,} tokens.")


def _refuse_others(context: typer.Context) -> None:
    """Refuse the options that have no effect with --from."""
    for name in context.params:
        place = context.get_parameter_source(name)
        if name not in FROM_FILE and place is not None and place.name == "COMMANDLINE":
            raise UserError(
                f"--{name.replace('_', '-')} has no effect with --from and --option: the "
                "checkpoint is converted as it is. Leave it out."
            )


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


def _numbers(given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",") if part.strip()]
    except ValueError:
        raise UserError(
            f"--keep-full must be numbers of layers with commas, such as 0,5: got {given!r}."
        ) from None


def _read(path: Path) -> str:
    with user_input(f"cannot read {path}"):
        return path.read_text(encoding="utf-8")
