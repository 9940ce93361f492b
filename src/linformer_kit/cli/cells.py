"""The benchmarks that are measured in cells: grid, budget, peers, decode, roofline."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console

from ..bench import (
    budget as budget_bench,
)
from ..bench import (
    budget_view,
    decode_view,
    grid_view,
    paper,
    peers_view,
    roofline_view,
)
from ..bench import (
    decode as decode_bench,
)
from ..bench import (
    grid as grid_bench,
)
from ..bench import (
    peers as peers_bench,
)
from ..bench import (
    roofline as roofline_bench,
)
from ..bench.cells import Cell, left_to_measure, measure_cells
from ..bench.contestants import Point
from ..bench.machine import describe
from ..bench.peer_models import PEERS
from ..bench.records import Record, RecordFile
from ..figures.sheet import Sheet
from .bench import (
    Again,
    Batch,
    ResumedOut,
    Seed,
    Threads,
    keep_records,
    names,
    print_plainly,
    progress_line,
    records_in,
    tell_where,
    whole_numbers,
)
from .mistakes import users_mistakes
from .sheets import show_sheets

Quick = Annotated[bool, typer.Option("--quick", help="Small sizes: seconds, not minutes.")]
Rounds = Annotated[int | None, typer.Option(help="Rounds; fewer for what takes over a second.")]
Memory = Annotated[
    bool, typer.Option("--memory/--no-memory", help="Also measure peak memory, in processes.")
]


def _grid_sheets(records: list[Record]) -> list[Sheet]:
    found = grid_view.read_grid(records)
    return [] if found is None else grid_view.sheets(found)


def grid(
    lengths: Annotated[str | None, typer.Option(help="Lengths n, with commas.")] = None,
    k: Annotated[str | None, typer.Option(help="Rows k, with commas.")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Short inputs come in batches of so many tokens.")
    ] = None,
    rounds: Rounds = None,
    limit: Annotated[
        float, typer.Option(help="Skip what would take more seconds a run, by estimate.")
    ] = 240.0,
    memory: Memory = True,
    threads: Threads = 2,
    seed: Seed = 0,
    quick: Quick = False,
    again: Again = False,
    out: ResumedOut = Path("results/bench-grid.jsonl"),
) -> None:
    """The paper's Table 3 on this machine: lengths and k against the vanilla Transformer."""
    defaults = {"dim": 128, "num_heads": 4, "tokens": 2048, "rounds": 3} if quick else {}
    with users_mistakes():
        settings = grid_bench.GridBench(
            lengths=_numbers("lengths", lengths, (512, 2048, 8192) if quick else paper.LENGTHS),
            ks=_numbers("k", k, (128, 256) if quick else paper.ROWS),
            limit=limit,
            threads=threads,
            seed=seed,
            memory=memory,
            **_given(defaults, dim=dim, num_heads=heads, tokens=tokens, rounds=rounds),
        )
    _run(grid_bench.BENCH, grid_bench.cells(settings), _grid_sheets, settings, out, again)


def budget(
    lengths: Annotated[str | None, typer.Option(help="Lengths n, with commas.")] = None,
    k: Annotated[str | None, typer.Option(help="Rows k, with commas.")] = None,
    shapes: Annotated[str, typer.Option(help="Models, with commas.")] = ",".join(
        get_args(budget_bench.Shape)
    ),
    tokens: Annotated[int | None, typer.Option(help="Tokens of every batch.")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    depth: Annotated[int | None, typer.Option(help="Layers.")] = None,
    rounds: Rounds = None,
    threads: Threads = 2,
    seed: Seed = 0,
    quick: Quick = False,
    again: Again = False,
    out: ResumedOut = Path("results/bench-budget.jsonl"),
) -> None:
    """The same tokens a batch in ever longer inputs: Linformer stays flat, vanilla grows."""
    defaults = {"tokens": 4096, "dim": 64, "num_heads": 2, "rounds": 3} if quick else {}
    whole = budget_bench.BudgetBench()
    with users_mistakes():
        settings = budget_bench.BudgetBench(
            lengths=_numbers("lengths", lengths, (256, 1024, 4096) if quick else whole.lengths),
            ks=_numbers("k", k, whole.ks),
            shapes=cast("tuple[budget_bench.Shape, ...]", names(shapes)),
            threads=threads,
            seed=seed,
            **_given(defaults, tokens=tokens, dim=dim, num_heads=heads, depth=depth, rounds=rounds),
        )
    _run(budget_bench.BENCH, budget_bench.cells(settings), budget_view.sheets, settings, out, again)


def peers(
    lengths: Annotated[str | None, typer.Option(help="Lengths n, with commas.")] = None,
    k: Annotated[int | None, typer.Option(help="Rows, landmarks, features, window.")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the models.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    depth: Annotated[int | None, typer.Option(help="Layers.")] = None,
    batch: Batch = 1,
    who: Annotated[str, typer.Option("--peers", help="Who takes part, with commas.")] = ",".join(
        PEERS
    ),
    what: Annotated[str, typer.Option(help="What to measure, with commas.")] = ",".join(
        get_args(peers_bench.What)
    ),
    rounds: Rounds = None,
    limit: Annotated[
        float, typer.Option(help="Leave out a peer that takes more seconds a run.")
    ] = 60.0,
    threads: Threads = 2,
    seed: Seed = 0,
    quick: Quick = False,
    again: Again = False,
    out: ResumedOut = Path("results/bench-peers.jsonl"),
) -> None:
    """Against every installable encoder for long inputs: time, memory, equal outputs."""
    small = {"dim": 64, "num_heads": 2, "k": 64, "depth": 1}
    defaults = small if quick else {"dim": 512, "num_heads": 8, "k": 256, "depth": 3}
    sizes = _given(defaults, dim=dim, num_heads=heads, k=k, depth=depth)
    with users_mistakes():
        settings = peers_bench.PeersBench(
            points=tuple(
                Point(length=length, batch=batch, **sizes)
                for length in _numbers(
                    "lengths", lengths, (512,) if quick else (512, 1024, 2048, 4096)
                )
            ),
            peers=names(who),
            what=cast("tuple[peers_bench.What, ...]", names(what)),
            rounds=(2 if quick else 5) if rounds is None else rounds,
            threads=threads,
            seed=seed,
            limit=limit,
        )
    notes = [f"{name} skipped: {reason}" for name, reason in settings.missing.items()]
    cells = peers_bench.cells(settings)
    _run(peers_bench.BENCH, cells, peers_view.sheets, settings, out, again, notes=notes)


def decode(
    contexts: Annotated[str | None, typer.Option(help="Tokens before, with commas.")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    depth: Annotated[int | None, typer.Option(help="Layers.")] = None,
    k: Annotated[int | None, typer.Option(help="Slots.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens of a window.")] = None,
    batch: Batch = 1,
    rounds: Rounds = None,
    memory: Memory = True,
    threads: Threads = 2,
    seed: Seed = 0,
    quick: Quick = False,
    again: Again = False,
    out: ResumedOut = Path("results/bench-decode.jsonl"),
) -> None:
    """Time and memory of one generated token, over how many came before."""
    defaults = {"dim": 64, "num_heads": 2, "depth": 1, "rounds": 3} if quick else {}
    whole = decode_bench.DecodeBench()
    with users_mistakes():
        settings = decode_bench.DecodeBench(
            contexts=_numbers("contexts", contexts, (512, 4096) if quick else whole.contexts),
            batch=batch,
            threads=threads,
            seed=seed,
            memory=memory,
            **_given(
                defaults,
                dim=dim,
                num_heads=heads,
                depth=depth,
                k=k,
                window=window,
                rounds=rounds,
            ),
        )
    _run(decode_bench.BENCH, decode_bench.cells(settings), decode_view.sheets, settings, out, again)


def roofline(
    lengths: Annotated[str | None, typer.Option(help="Lengths n, with commas.")] = None,
    k: Annotated[int | None, typer.Option(help="Rows k.")] = None,
    dim: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads.")] = None,
    batch: Batch = 1,
    rounds: Rounds = None,
    threads: Threads = 2,
    seed: Seed = 0,
    quick: Quick = False,
    again: Again = False,
    out: ResumedOut = Path("results/bench-roofline.jsonl"),
) -> None:
    """The share of the machine's GEMM rate that each operation of a layer reaches."""
    small = {"dim": 128, "num_heads": 4, "k": 128}
    defaults = small if quick else {"dim": 512, "num_heads": 8, "k": 256}
    sizes = _given(defaults, dim=dim, num_heads=heads, k=k)
    with users_mistakes():
        settings = roofline_bench.RooflineBench(
            points=tuple(
                Point(length=length, batch=batch, **sizes)
                for length in _numbers("lengths", lengths, (1024,) if quick else (4096,))
            ),
            rounds=(3 if quick else 20) if rounds is None else rounds,
            threads=threads,
            seed=seed,
            gemm_size=512 if quick else 2048,
        )
    cells = roofline_bench.cells(settings)
    _run(roofline_bench.BENCH, cells, roofline_view.sheets, settings, out, again)


def _run(
    bench: str,
    cells: Sequence[Cell],
    sheets: Callable[[list[Record]], list[Sheet]],
    settings: Any,
    out: Path,
    again: bool,
    notes: Sequence[str] = (),
) -> None:
    """Measure what has no record, then show all cells that were asked for."""
    machine = describe(seed=settings.seed, threads=settings.threads)
    console, aside = Console(), Console(stderr=True)
    known = records_in(out, aside)
    with users_mistakes():
        file = RecordFile(out)
    left = list(cells) if again else left_to_measure(bench, cells, known, machine)
    if len(left) < len(cells):
        count = len(cells) - len(left)
        print_plainly(aside, f"{count} of {len(cells)} cells are in {out} and not measured again.")
    records = list(known)
    with progress_line(aside) as say:
        stopped = keep_records(measure_cells(bench, left, machine=machine, say=say), file, records)
    asked_for = [cell.settings for cell in cells]
    show_sheets(console, sheets([r for r in records if r.get("cell") in asked_for]))
    for note in notes:
        print_plainly(console, note)
    tell_where(console, file, stopped)


def _given(defaults: dict[str, int], **options: int | None) -> dict[str, Any]:
    """The options that were given, over the defaults."""
    return defaults | {name: value for name, value in options.items() if value is not None}


def _numbers(option: str, text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    return default if text is None else whole_numbers(option, text)


COMMANDS = (grid, budget, peers, decode, roofline)
