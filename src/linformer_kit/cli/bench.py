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

from ..bench import attention as attention_bench
from ..bench import growth as growth_bench
from ..bench.attention_table import memory_table, notes, time_table
from ..bench.contestants import CONTESTANTS, LayerKind, Point
from ..bench.gemm import SIZE
from ..bench.growth_table import growth_table, in_words
from ..bench.records import Record, RecordFile, read_records
from ..bench.step import Mode
from .mistakes import users_mistakes

STOPPED = 130  # the exit code of a program ended by Ctrl-C

Batch = Annotated[int, typer.Option(help="Inputs at a time.")]
Threads = Annotated[int, typer.Option(help="Threads to compute with.")]
Seed = Annotated[int, typer.Option(help="Seed of weights and inputs.", min=0, max=2**32 - 1)]
Out = Annotated[Path, typer.Option(help="Where records are appended, as JSON lines.")]
ResumedOut = Annotated[
    Path, typer.Option(help="Where records are appended; what is there is not measured again.")
]
Again = Annotated[
    bool, typer.Option("--again", help="Measure what has a record already once more.")
]

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


WHOLE = Sizes(lengths="4096,16384", k="256,32", dim=512, heads=8, rounds=10, gemm_size=SIZE)
QUICK = Sizes(lengths="1024", k="64", dim=128, heads=4, rounds=3, gemm_size=512)


def _either(field: str) -> str:
    return f"(default: {getattr(WHOLE, field)}; quick: {getattr(QUICK, field)})"


@app.command()
def attention(
    lengths: Annotated[
        str | None, typer.Option(help=f"Lengths n, with commas {_either('lengths')}")
    ] = None,
    k: Annotated[str | None, typer.Option(help=f"Rows k, with commas {_either('k')}")] = None,
    dim: Annotated[int | None, typer.Option(help=f"Width of the model {_either('dim')}")] = None,
    heads: Annotated[int | None, typer.Option(help=f"Attention heads {_either('heads')}")] = None,
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
        typer.Option(help=f"Rounds; fewer for what takes over 1 s {_either('rounds')}"),
    ] = None,
    threads: Threads = 2,
    dropout: Annotated[float, typer.Option(help="Rate of dropout of the mode `dropout`.")] = 0.1,
    limit: Annotated[
        float, typer.Option(help="Leave out a contestant that takes more seconds a run.")
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
    with users_mistakes():
        settings = attention_bench.AttentionBench(
            points=tuple(
                Point(
                    dim=sizes.dim if dim is None else dim,
                    num_heads=sizes.heads if heads is None else heads,
                    k=rows,
                    length=length,
                    batch=batch,
                )
                for length in whole_numbers(
                    "lengths", sizes.lengths if lengths is None else lengths
                )
                for rows in whole_numbers("k", sizes.k if k is None else k)
            ),
            layers=cast("tuple[LayerKind, ...]", names(layers)),
            modes=cast("tuple[Mode, ...]", names(modes)),
            contestants=names(contestants),
            rounds=sizes.rounds if rounds is None else rounds,
            threads=threads,
            dropout=dropout,
            seed=seed,
            limit=limit,
            gemm_size=sizes.gemm_size,
            memory=memory,
            keep_memory=keep_memory,
        )
        file = RecordFile(out)
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
    lengths: Annotated[
        str, typer.Option(help="Lengths n, with commas.")
    ] = "512,1024,2048,4096,8192,16384,32768",
    dim: Annotated[int, typer.Option(help="Width of the model.")] = 256,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
    k: Annotated[int, typer.Option(help="Rows that keys and values are shortened to.")] = 128,
    depth: Annotated[int, typer.Option(help="Layers, each attention and feed-forward.")] = 1,
    batch: Batch = 1,
    full: Annotated[
        bool, typer.Option("--full/--no-full", help="Compare with full attention.")
    ] = True,
    budget: Annotated[
        float, typer.Option(help="Skip full attention where a run would take more seconds.")
    ] = 20.0,
    rounds: Annotated[int, typer.Option(help="Rounds; fewer for what takes over 1 s.")] = 5,
    threads: Threads = 2,
    seed: Seed = 0,
    again: Again = False,
    out: ResumedOut = Path("results/bench-growth.jsonl"),
) -> None:
    """See how time and memory grow with the length: Linformer and full attention."""
    with users_mistakes():
        settings = growth_bench.GrowthBench(
            points=tuple(
                Point(dim=dim, num_heads=heads, k=k, length=length, batch=batch, depth=depth)
                for length in whole_numbers("lengths", lengths)
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
    with users_mistakes():
        file = RecordFile(out)
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


def records_in(path: Path, aside: Console) -> list[Record]:
    """What a file holds, if there is one; damaged lines are reported."""
    if not path.is_file():
        return []
    with users_mistakes((OSError,)):
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
    with users_mistakes((OSError,)), file:
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


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--{option} takes whole numbers with commas between them: got {text!r}."
        ) from None


def names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))
