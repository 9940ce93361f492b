"""`linformer onnx-time`: torch and onnxruntime on the same model."""

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ..errors import user_input
from ..machine_memory import require_memory
from ..measure import quantities
from ..measure.records import Record
from .bench import check_out, keep_records, open_records, progress_line, tell_where
from .options import (
    Batch,
    Depth,
    Heads,
    K,
    Lengths,
    Out,
    Rounds,
    Seed,
    Threads,
    Width,
    whole_numbers,
)


def onnx_time(
    lengths: Lengths = "512,2048,8192",
    batch: Batch = 1,
    dim: Width = 256,
    heads: Heads = 4,
    k: K = 128,
    depth: Depth = 2,
    aot: Annotated[
        bool, typer.Option("--aot", help="Also compile with AOTInductor (needs a C++ compiler).")
    ] = False,
    rounds: Rounds = 10,
    threads: Threads = 2,
    seed: Seed = 0,
    out: Out = Path("results/onnx-time.jsonl"),
) -> None:
    """Time an encoder and a decoder's step in torch and in onnxruntime, in turn."""
    all_lengths = whole_numbers("lengths", lengths)
    check_out(out)
    from ..export import NEEDED, require

    require(*NEEDED)
    from ..export import onnx_time as experiment

    with user_input("onnx-time"):
        longest = max(all_lengths)
        require_memory(
            f"length={longest}, k={k}, dim={dim}, batch={batch}, depth={depth}",
            4 * (2 * batch * longest * dim + k * longest + 12 * depth * dim**2),
            remedy="Use smaller sizes.",
        )
        settings = experiment.OnnxTime(
            lengths=all_lengths,
            batch=batch,
            dim=dim,
            heads=heads,
            k=k,
            depth=depth,
            rounds=rounds,
            threads=threads,
            seed=seed,
            aot=aot,
        )
    file = open_records(out)
    console = Console()
    records: list[Record] = []
    with progress_line(Console(stderr=True)) as say:
        stopped = keep_records(experiment.measure(settings, say=say), file, records)
    console.print(_table(records, torch=experiment.TORCH))
    tell_where(console, file, stopped)


def _table(records: list[Record], *, torch: str) -> Table:
    """A row for each model and length; × is how many times faster than torch."""
    from ..measure.timing import Timing, times_faster

    names = list(dict.fromkeys(record["contestant"] for record in records))
    table = Table(title="Inference time", box=box.SIMPLE_HEAVY, title_style="bold")
    table.add_column("what", style="bold")
    table.add_column("length", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    rows: dict[tuple[str, int], dict[str, Record]] = {}
    for record in records:
        rows.setdefault((record["what"], record["length"]), {})[record["contestant"]] = record
    for (what, length), row in rows.items():
        base = Timing(tuple(row[torch]["seconds"]))
        cells = []
        for name in names:
            record = row[name]
            times = times_faster(Timing(tuple(record["seconds"])), base)
            text = record["note"] or quantities.seconds(record["best"])
            cells.append(text if name == torch else f"{text} {quantities.ratio(times)}")
        table.add_row(what, f"{length:,}", *cells)
    return table
