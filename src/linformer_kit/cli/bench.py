"""`linformer bench attention` and `linformer bench growth`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..bench.names import CONTESTANTS, GEMM_SIZE, LayerKind, Mode
from ..config import limits
from ..errors import user_input
from ..measure.records import Record, RecordFile, check_appendable, read_records
from .exit_codes import STOPPED
from .options import (
    ROUNDS,
    Again,
    Batch,
    Depth,
    Heads,
    K,
    Lengths,
    Out,
    ResumedOut,
    Rounds,
    Seed,
    Threads,
    Width,
    finite,
    names,
    whole_numbers,
)

app = typer.Typer(help="Measure time and memory on this machine.")


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@dataclass(frozen=True)
class Sizes:
    """Defaults of `bench attention`."""

    lengths: str
    k: str
    dim: int
    heads: int
    rounds: int
    gemm_size: int


WHOLE = Sizes(lengths="4096,16384", k="256,32", dim=512, heads=8, rounds=10, gemm_size=GEMM_SIZE)
QUICK = Sizes(lengths="1024", k="64", dim=128, heads=4, rounds=3, gemm_size=512)


def _either(field: str) -> str:
    return f"(default: {getattr(WHOLE, field)}; quick: {getattr(QUICK, field)})"


@app.command()
def attention(
    lengths: Annotated[
        str | None, typer.Option(help=f"Lengths n, with commas {_either('lengths')}")
    ] = None,
    k: Annotated[str | None, typer.Option(help=f"Rows k, with commas {_either('k')}")] = None,
    dim: Annotated[
        int | None,
        typer.Option(help=f"Width of the model {_either('dim')}", min=1, max=limits.WIDTH),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(help=f"Attention heads {_either('heads')}", min=1, max=limits.WIDTH),
    ] = None,
    batch: Batch = 1,
    layers: Annotated[str, typer.Option(help="Kinds of layer, with commas.")] = ",".join(
        get_args(LayerKind)
    ),
    modes: Annotated[
        str, typer.Option(help="Modes, with commas; `dropout` is training with it.")
    ] = ",".join(get_args(Mode)),
    contestants: Annotated[str, typer.Option(help="Who takes part, with commas.")] = ",".join(
        CONTESTANTS
    ),
    rounds: Annotated[
        int | None,
        typer.Option(
            help=f"Rounds; fewer for what takes over 1 s {_either('rounds')}", min=1, max=ROUNDS
        ),
    ] = None,
    threads: Threads = 2,
    dropout: Annotated[
        float, typer.Option(help="Rate of dropout of the mode `dropout`.", callback=finite)
    ] = 0.1,
    limit: Annotated[
        float,
        typer.Option(help="Leave out a contestant that takes more seconds a run.", callback=finite),
    ] = 60.0,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also measure the peak memory of a training step.")
    ] = False,
    keep_memory: Annotated[
        bool, typer.Option("--keep-memory", help="Let the process keep what is freed, for all.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: seconds, not minutes.")] = (
        False
    ),
    seed: Seed = 0,
    out: Out = Path("results/bench-attention.jsonl"),
) -> None:
    """Time one layer against full attention and the earlier implementations."""
    sizes = QUICK if quick else WHOLE
    all_lengths = whole_numbers("lengths", sizes.lengths if lengths is None else lengths)
    all_k = whole_numbers("k", sizes.k if k is None else k)
    kinds = names("layers", layers), names("modes", modes), names("contestants", contestants)
    check_out(out)
    from ..bench import attention as attention_bench
    from ..bench.attention_table import memory_table, notes, time_table
    from ..bench.contestants import Point

    with user_input("bench attention"):
        settings = attention_bench.AttentionBench(
            points=tuple(
                Point(
                    dim=sizes.dim if dim is None else dim,
                    num_heads=sizes.heads if heads is None else heads,
                    k=rows,
                    length=length,
                    batch=batch,
                )
                for length in all_lengths
                for rows in all_k
            ),
            layers=cast("tuple[LayerKind, ...]", kinds[0]),
            modes=cast("tuple[Mode, ...]", kinds[1]),
            contestants=kinds[2],
            rounds=sizes.rounds if rounds is None else rounds,
            threads=threads,
            dropout=dropout,
            seed=seed,
            limit=limit,
            gemm_size=sizes.gemm_size,
            memory=memory,
            keep_memory=keep_memory,
        )
    file = open_records(out)
    console = Console()
    records: list[Record] = []
    with progress_line(Console(stderr=True)) as say:
        stopped = keep_records(attention_bench.measure(settings, say=say), file, records)
    console.print(time_table(records))
    if (table := memory_table(records)) is not None:
        console.print(table)
    for name, reason in settings.missing.items():
        print_plainly(console, f"{name} skipped: {reason}")
    for note in notes(records):
        print_plainly(console, note)
    if keep_memory and records and not records[0]["keep_memory"]:
        print_plainly(console, "--keep-memory did nothing: it needs glibc, so Linux.")
    tell_where(console, file, stopped)


@app.command()
def growth(
    lengths: Lengths = "512,1024,2048,4096,8192,16384,32768",
    dim: Width = 256,
    heads: Heads = 4,
    k: K = 128,
    depth: Depth = 1,
    batch: Batch = 1,
    full: Annotated[
        bool, typer.Option("--full/--no-full", help="Compare with full attention.")
    ] = True,
    budget: Annotated[
        float,
        typer.Option(
            help="Skip full attention where a run would take more seconds.", callback=finite
        ),
    ] = 20.0,
    rounds: Rounds = 5,
    threads: Threads = 2,
    seed: Seed = 0,
    again: Again = False,
    out: ResumedOut = Path("results/bench-growth.jsonl"),
) -> None:
    """See how time and memory grow with the length: Linformer and full attention."""
    all_lengths = whole_numbers("lengths", lengths)
    check_out(out)
    from ..bench import growth as growth_bench
    from ..bench.contestants import Point
    from ..bench.growth_table import growth_table, in_words

    with user_input("bench growth"):
        settings = growth_bench.GrowthBench(
            points=tuple(
                Point(dim=dim, num_heads=heads, k=k, length=length, batch=batch, depth=depth)
                for length in all_lengths
            ),
            full=full,
            rounds=rounds,
            threads=threads,
            seed=seed,
            budget=budget,
        )
    console, aside = Console(), Console(stderr=True)
    before = records_in(out, aside)
    known = [] if again else growth_bench.measured_already(settings, before)
    file = open_records(out)
    if known:
        lengths_known = len({record["length"] for record in known})
        print_plainly(
            aside,
            f"{lengths_known} of {len(settings.points)} lengths are in {out} and not measured "
            "again.",
        )
    records = list(known)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def say(what: str) -> None:
            live.update(Group(growth_table(records), Text(what, style="dim")), refresh=True)

        stopped = keep_records(growth_bench.measure(settings, known, say=say), file, records)
    console.print(growth_table(records))
    console.print(Text(in_words(records), style="bold"))
    tell_where(console, file, stopped)


def check_out(path: Path) -> None:
    """Refuse a file that records cannot be added to, before anything else is done."""
    with user_input(f"cannot write {path}"):
        check_appendable(path)


def open_records(path: Path) -> RecordFile:
    with user_input(f"cannot write {path}"):
        return RecordFile(path)


def records_in(path: Path, aside: Console) -> list[Record]:
    """What a file holds, if there is one; damaged lines are reported."""
    if not path.is_file():
        return []
    with user_input(f"cannot read {path}"):
        records, problems = read_records(path)
    for problem in problems:
        print_plainly(aside, problem)
    return records


@contextmanager
def progress_line(console: Console) -> Iterator[Callable[[str], None]]:
    """Say what is being done, in one line that the next replaces and the end removes.

    Drawn between runs only: a thread that redraws would take time from what is being timed.
    """
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda what: live.update(Text(what), refresh=True)


def keep_records(measured: Iterable[Record], file: RecordFile, records: list[Record]) -> bool:
    """Write every record as it comes, and add it to `records`. True if Ctrl-C ended it."""
    with file:
        try:
            for record in measured:
                file.append(record)
                records.append(record)
        except KeyboardInterrupt:
            return True
    return False


def tell_where(console: Console, file: RecordFile, stopped: bool) -> None:
    written = file.written
    number = f"{written} record{'' if written == 1 else 's'}"
    if stopped:
        print_plainly(console, f"Stopped: {number} so far, kept in {file.path}")
        raise typer.Exit(STOPPED)
    print_plainly(console, f"{number} added to {file.path}")


def print_plainly(console: Console, text: str) -> None:
    """A line as it is: names and paths may hold what looks like markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
