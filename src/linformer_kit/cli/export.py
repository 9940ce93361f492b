"""`linformer export`: a model as an ONNX file, checked before it says done."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import user_input
from ..measure import quantities
from .libraries import silence_libraries


def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_OR_MODEL", help="The folder of a run, or of a model.")
    ],
    to: Annotated[Path, typer.Option(help="The file to write, ending in .onnx.")],
    model: Annotated[
        str, typer.Option(help="Which model of a run: best, last, or the step of a checkpoint.")
    ] = "best",
    int8: Annotated[
        bool,
        typer.Option(
            "--int8", help="Also write a file with weights of 8 bits, and tell their cost."
        ),
    ] = False,
) -> None:
    """Write a model as ONNX and compare it with onnxruntime, at several lengths, with padding."""
    from ..export import NEEDED, require

    require(*NEEDED)
    from ..export.exporter import check_target, export_onnx
    from ..export.load import load_model

    silence_libraries()

    def say(what: str) -> None:
        if sys.stderr.isatty():
            typer.echo(what, err=True)

    with user_input(f"cannot write {to}"):
        check_target(to)
    with user_input(f"cannot load the model {source}"):
        loaded = load_model(source, which=model)
    with user_input(f"cannot export {source}"):
        files = export_onnx(loaded, to, int8=int8, say=say)
    for file in files:
        lengths = ", ".join(map(str, file.difference.lengths))
        typer.echo(
            f"{file.path}  {quantities.size(file.size)}  largest difference "
            f"{file.difference.largest:.1e} at lengths {lengths}"
        )
        if file.int8 is not None:
            cost = file.int8.cost
            same = "" if cost.same is None else f", the same choice in {cost.same:.1%}"
            typer.echo(
                f"{file.int8.path}  {quantities.size(file.int8.size)}  mean difference "
                f"{cost.mean:.1e} where outputs are {cost.output:.1e}, largest "
                f"{cost.largest:.1e}{same}"
            )
