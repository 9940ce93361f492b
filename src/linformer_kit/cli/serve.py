"""`linformer serve`: models behind an address."""

from typing import Annotated, Any

import typer

from ..config import limits
from ..errors import UserError, user_input
from ..machine_memory import require_memory
from .libraries import install_hint, silence_libraries
from .options import finite

SECONDS = 86_400.0


def serve(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FOLDER...",
            help="Runs, model folders, folders of sentence-transformers, or files of linformer "
            "export.",
        ),
    ],
    port: Annotated[int, typer.Option(help="0: a free one.", min=0, max=65_535)] = 8000,
    host: Annotated[
        str, typer.Option(help="The address to listen on; one that is not local needs a token.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar="LINFORMER_TOKEN",
            show_envvar=True,
            help="What requests must bring as 'Authorization: Bearer TOKEN'.",
        ),
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Export the models and compute with onnxruntime.")
    ] = False,
    int8: Annotated[bool, typer.Option("--int8", help="With --onnx: weights of 8 bits.")] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads to compute with (default: all cores).", min=1, max=limits.THREADS
        ),
    ] = None,
    queue: Annotated[
        int, typer.Option(help="Requests that may wait; more get 429.", min=1, max=limits.QUEUE)
    ] = 256,
    max_body_mb: Annotated[
        int, typer.Option(help="Megabytes of a request.", min=1, max=limits.MEGABYTES)
    ] = 16,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens of a request.", min=1, max=limits.COUNT)
    ] = 1_000_000,
    max_new_tokens: Annotated[
        int, typer.Option(help="Tokens written for a request.", min=1, max=limits.COUNT)
    ] = 100_000,
    time_limit: Annotated[
        float,
        typer.Option(help="Seconds of a request.", min=0.001, max=SECONDS, callback=finite),
    ] = 300.0,
    tokens_per_batch: Annotated[
        int, typer.Option(help="Tokens of a batch.", min=1, max=limits.LENGTH)
    ] = 16_384,
    deadline: Annotated[
        float,
        typer.Option(
            help="Seconds of a batch: so long others wait for it at most.",
            min=0.001,
            max=SECONDS,
            callback=finite,
        ),
    ] = 0.25,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each request.")] = False,
) -> None:
    """Serve models over HTTP: OpenAI's interface, POST /predict, a page. On this machine only,
    unless there is a token.
    """
    if int8 and not onnx:
        raise UserError("--int8 has no effect without --onnx. Add it, or leave --int8 out.")
    with install_hint("serve"):
        from ..serve.settings import MB, Settings

        with user_input("--max-body-mb is too large"):
            require_memory(
                f"a request of {max_body_mb:,} MB", max_body_mb * MB, remedy="Use a smaller one."
            )
        settings = Settings(
            host=host,
            port=port,
            token=token,
            max_body=max_body_mb * MB,
            max_tokens=max_tokens,
            max_new_tokens=max_new_tokens,
            time_limit=time_limit,
            queue=queue,
            tokens_per_batch=tokens_per_batch,
            deadline=deadline,
        )
        silence_libraries()
        import torch

        from ..serve.models import load_models
        from ..serve.server import run_server

        if threads is not None:
            torch.set_num_threads(threads)

        def say(line: Any) -> None:
            typer.echo(f"linformer: {line}", err=True)

        backend: Any = "torch"
        if onnx:
            backend = "onnxruntime int8" if int8 else "onnxruntime"
        models = load_models(folders, backend=backend, say=say)
        run_server(models, settings, say=say, log_requests=not quiet)
