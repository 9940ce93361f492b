"""`linformer keras-time`: how long the Keras layer predicts, beside the stock layer."""

import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ..config import limits
from ..errors import UserError, user_input
from ..machine_memory import require_memory
from ..measure import quantities
from ..measure.records import Record
from .bench import check_out, keep_records, open_records, progress_line, tell_where
from .options import Batch, Heads, K, Out, Rounds, Seed, whole_numbers

if TYPE_CHECKING:
    from types import ModuleType


class Backend(str, Enum):
    torch = "torch"
    jax = "jax"
    tensorflow = "tensorflow"


def keras_time(
    sequence_length: Annotated[
        str, typer.Option(help="Positions; several with commas give a table.")
    ] = "2000",
    batch_size: Batch = 25,
    embedding_dim: Annotated[
        int, typer.Option(help="Channels of the input.", min=1, max=limits.WIDTH)
    ] = 256,
    projection_dim: K = 64,
    num_heads: Heads = 8,
    hidden_dim: Annotated[
        int, typer.Option(help="The size of a head, Keras' key_dim.", min=1, max=limits.WIDTH)
    ] = 128,
    backend: Annotated[
        Backend, typer.Option(help="What Keras computes with.", envvar="KERAS_BACKEND")
    ] = Backend.torch,
    stock: Annotated[
        bool, typer.Option("--stock/--no-stock", help="Also time Keras' MultiHeadAttention.")
    ] = True,
    rounds: Rounds = 5,
    seed: Seed = 0,
    out: Out = Path("results/keras-time.jsonl"),
) -> None:
    """Time the prediction of Keras' attention layer, linear and stock, in turn."""
    lengths = whole_numbers("sequence-length", sequence_length)
    check_out(out)
    with user_input("keras-time"):
        require_memory(
            f"sequence_length={max(lengths)}, batch_size={batch_size}, "
            f"embedding_dim={embedding_dim}",
            4 * 2 * batch_size * max(lengths) * embedding_dim
            + 4 * 4 * embedding_dim * num_heads * hidden_dim,
            remedy="Use smaller sizes.",
        )
    experiment = _experiment(backend.value)
    with user_input("keras-time"):
        settings = experiment.PredictionTime(
            sequence_lengths=lengths,
            batch_size=batch_size,
            embedding_dim=embedding_dim,
            projection_dim=projection_dim,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            rounds=rounds,
            seed=seed,
            stock=stock,
        )
    file = open_records(out)
    console = Console()
    model = settings.model(settings.sequence_lengths[0], settings.projection_dim)
    model.summary(print_fn=lambda text, **_: typer.echo(text))
    records: list[Record] = []
    with progress_line(Console(stderr=True)) as say:
        stopped = keep_records(experiment.measure(settings, say=say), file, records)
    console.print(_table(records, ours=experiment.OURS, stock=experiment.STOCK))
    tell_where(console, file, stopped)


def _experiment(backend: str) -> "ModuleType":
    """The module of the experiment, imported with this backend: Keras cannot change it later."""
    if sys.modules.get("keras") is not None:
        running = sys.modules["keras"].backend.backend()
        if running != backend:
            raise UserError(
                f"Keras runs on {running} in this process already: got --backend {backend}. "
                "Start a process of its own."
            )
    os.environ["KERAS_BACKEND"] = backend  # of this process, which is ours
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the CPU
    try:
        from ..keras import prediction_time
    except ModuleNotFoundError as error:
        raise UserError(str(error)) from error
    return prediction_time


def _table(records: list[Record], *, ours: str, stock: str) -> Table:
    first = records[0] if records else {}
    table = Table(
        title="Prediction time",
        caption=_sizes(first),
        box=box.SIMPLE_HEAVY,
        title_style="bold",
    )
    by_length: dict[int, dict[str, Record]] = {}
    for record in records:
        by_length.setdefault(record["length"], {})[record["contestant"]] = record
    table.add_column("positions", justify="right", style="bold")
    table.add_column(ours, justify="right", style="cyan")
    compared = any(record["contestant"] == stock for record in records)
    if compared:
        table.add_column(stock, justify="right")
        table.add_column("times faster", justify="right", style="green")
    for length, row in by_length.items():
        cells = [f"{length:,}", _time(row.get(ours))]
        if compared:
            cells += [_time(row.get(stock)), quantities.ratio(_ratio(row, ours, stock))]
        table.add_row(*cells)
    return table


def _sizes(record: Record) -> str:
    if not record:
        return "Nothing was measured."
    return (
        f"batch {record['batch']}, embedding {record['embedding_dim']}, "
        f"{record['num_heads']} heads "
        f"of {record['hidden_dim']}, projection_dim {record['projection_dim']}; "
        f"Keras {record['machine']['keras']} on {record['backend']}"
    )


def _time(record: Record | None) -> str:
    if record is None:
        return "-"
    return record["note"] or quantities.seconds(record["best"])


def _ratio(row: dict[str, Any], ours: str, stock: str) -> float | None:
    """Of the rounds that both took part in, as everywhere."""
    from ..measure.timing import Timing, times_faster

    if ours not in row or stock not in row:
        return None
    return times_faster(Timing(tuple(row[ours]["seconds"])), Timing(tuple(row[stock]["seconds"])))
