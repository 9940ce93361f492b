"""`linformer bench ...`: a command for each benchmark, made from its settings."""

import importlib
import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ..errors import user_input
from ..evidence.bench.catalog import BENCHMARKS, Benchmark
from ..measure import quantities
from ..measure.records import Record, RecordFile, check_appendable, read_records
from .exit_codes import STOPPED
from .options import finite, names, whole_numbers
from .sheets import show_sheets

LINE_SECONDS = 10.0  # between lines of progress off a terminal

app = typer.Typer(help="Measure time and memory on this machine.")


@app.callback(invoke_without_command=True)
def bench(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def command(benchmark: Benchmark) -> Callable[..., None]:
    """The function of a command: an option for each setting, --quick, --again and --out."""

    def run(**values: Any) -> None:
        run_benchmark(benchmark, **values)

    own = [_parameter(one) for one in fields(benchmark.settings)]
    quick = typer.Option("--quick", help="Small sizes: seconds, not minutes.")
    again = typer.Option("--again", help="Measure what has a record already once more.")
    out = typer.Option(help="Where records are appended; what is there is not measured again.")
    path = Path(f"results/bench-{benchmark.name}.jsonl")
    common = [
        _keyword("quick", Annotated[bool, quick], False),
        _keyword("again", Annotated[bool, again], False),
        _keyword("out", Annotated[Path, out], path),
    ]
    parameters = [*own, *common]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__ = benchmark.name.replace("-", "_")
    run.__doc__ = benchmark.help
    return run


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _parameter(setting: "Field[Any]") -> inspect.Parameter:
    """The option of a setting. One with a value for --quick has no default: see its help."""
    rule = setting.metadata["option"]
    default, help_text = _plain(setting.default), rule.help
    if rule.quick is not None:
        help_text += f" (default: {default}; quick: {_plain(rule.quick)})"
    more: dict[str, Any] = {"help": help_text, "envvar": rule.envvar}
    kind: Any = type(default)
    if kind is int:
        more |= {"min": rule.low, "max": rule.high}
    elif kind is float:
        more["callback"] = finite
    elif kind is str and rule.choices and not isinstance(setting.default, tuple):
        kind = _enum(setting.name.title(), rule.choices)
        default = kind(default)
    flags = rule.names
    if kind is bool and not flags:
        flags = (f"--{setting.name.replace('_', '-')}",)
    if rule.quick is not None:
        kind, default = kind | None, None
    return _keyword(setting.name, Annotated[kind, typer.Option(*flags, **more)], default)


def _enum(name: str, choices: tuple[str, ...]) -> Any:
    return Enum(name, {one: one for one in choices}, type=str)


def _plain(value: Any) -> Any:
    """A value as it is written on the command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def _read(setting: "Field[Any]", value: Any) -> Any:
    """A value of the command line as the settings have it."""
    if isinstance(value, Enum):
        return value.value
    if not isinstance(setting.default, tuple):
        return value
    option = setting.name.replace("_", "-")
    if isinstance(setting.default[0], str):
        return names(option, value)
    return whole_numbers(option, value, most=setting.metadata["option"].high)


def run_benchmark(
    benchmark: Benchmark, *, quick: bool, again: bool, out: Path, **values: Any
) -> None:
    """Measure the cells without a record, then show all that were asked for."""
    known_fields = {one.name: one for one in fields(benchmark.settings)}
    given = {
        name: _read(known_fields[name], value)
        for name, value in values.items()
        if value is not None
    }
    check_out(out)
    with user_input(f"bench {benchmark.name}"):
        settings: Any = benchmark.settings.with_defaults(quick, given)
    from ..measure.cells import measure_cells, records_of, unfinished
    from ..measure.machine import describe

    module = importlib.import_module(benchmark.module)
    machine = describe(seed=settings.seed, threads=settings.threads)
    machine |= module.machine(settings) if hasattr(module, "machine") else {}
    console, aside = Console(), Console(stderr=True)
    records = records_in(out, aside)
    name, cells = benchmark.name, module.cells(settings)
    left = cells if again else unfinished(name, cells, records, machine)
    file = open_records(out)
    if len(left) < len(cells):
        count = len(cells) - len(left)
        cells_in_all = quantities.count(len(cells), "cell")
        print_plainly(aside, f"{out} has {count} of {cells_in_all}: not measured again.")

    def shown() -> list[Record]:
        return records_of(name, cells, records)

    with Live(console=aside, auto_refresh=False, transient=True) as live:

        def say(what: str) -> None:
            so_far = benchmark.results.sheets(shown()) if benchmark.live else []
            live.update(Group(*(one.as_rich() for one in so_far), Text(what)), refresh=True)

        measured = measure_cells(name, left, machine=machine, earlier=list(records), say=say)
        stopped = keep_records(measured, file, records)
    show_sheets(console, benchmark.results.sheets(shown()))
    said = benchmark.words(shown())
    for note in [*(module.notes(settings) if hasattr(module, "notes") else ()), said]:
        if note is not None:
            print_plainly(console, note)
    tell_where(console, file, stopped)


for each in BENCHMARKS:
    app.command(each.name)(command(each))


def check_out(path: Path) -> None:
    """Refuse a file that records cannot be added to, before anything else is done."""
    with user_input(f"cannot write {path}"):
        check_appendable(path)


def open_records(path: Path) -> RecordFile:
    with user_input(f"cannot write {path}"):
        return RecordFile(path)


def records_in(path: Path, aside: Console) -> list[Record]:
    """The records of a file, if there is one; damaged lines are reported."""
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

    Drawn between runs only: a thread that redraws would take time from what is being timed. Off a
    terminal a line now and then.
    """
    if not console.is_terminal:
        last = -math.inf

        def tell(what: str) -> None:
            nonlocal last
            if time.monotonic() - last > LINE_SECONDS:
                last = time.monotonic()
                console.file.write(f"{what}\n")
                console.file.flush()

        yield tell
        return
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
    number = quantities.count(written, "record")
    if stopped:
        print_plainly(console, f"Stopped: {number} so far, kept in {file.path}")
        raise typer.Exit(STOPPED)
    print_plainly(console, f"{number} added to {file.path}")


def print_plainly(console: Console, text: str) -> None:
    """A line as it is: names and paths may hold what looks like markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def main(benchmark: Benchmark, arguments: Sequence[str] | None = None) -> None:
    """Run a benchmark that is no command of `linformer`: `python -m benchmarks.NAME`."""
    from .app import Command, run

    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command(cls=Command)(command(benchmark))
    raise SystemExit(run(arguments, alone, f"python -m {benchmark.module}"))
