"""The benchmarks that are measured in cells: grid, budget, peers, decode, roofline."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from rich.console import Console

from ..bench import paper
from ..bench.names import PEERS, Shape, What
from ..config import limits
from ..errors import user_input
from ..figures.sheet import Sheet
from ..measure.records import Record
from .bench import (
    check_out,
    keep_records,
    open_records,
    print_plainly,
    progress_line,
    records_in,
    tell_where,
)
from .options import (
    ROUNDS,
    Again,
    Batch,
    ResumedOut,
    Seed,
    Threads,
    finite,
    names,
    whole_numbers,
)
from .sheets import show_sheets

if TYPE_CHECKING:
    from ..measure.cells import Cell

# Without a value, the defaults of the benchmark, or those of --quick.
Lengths = Annotated[str | None, typer.Option(help="Lengths n, with commas.")]
ManyK = Annotated[str | None, typer.Option(help="Rows k, with commas.")]
K = Annotated[int | None, typer.Option(help="Rows k.", min=1, max=limits.LENGTH)]
Width = Annotated[int | None, typer.Option(help="Width of the model.", min=1, max=limits.WIDTH)]
Heads = Annotated[int | None, typer.Option(help="Attention heads.", min=1, max=limits.WIDTH)]
Depth = Annotated[int | None, typer.Option(help="Layers.", min=1, max=limits.LAYERS)]
Rounds = Annotated[
    int | None,
    typer.Option(help="Rounds; fewer for what takes over a second.", min=1, max=ROUNDS),
]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes: seconds, not minutes.")]
Memory = Annotated[
    bool, typer.Option("--memory/--no-memory", help="Also measure peak memory, in processes.")
]


def grid(
    lengths: Lengths = None,
    k: ManyK = None,
    dim: Width = None,
    heads: Heads = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Short inputs come in batches of so many tokens.", min=1, max=limits.COUNT
        ),
    ] = None,
    rounds: Rounds = None,
    limit: Annotated[
        float,
        typer.Option(help="Skip what would take more seconds a run, by estimate.", callback=finite),
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
    all_lengths = _numbers("lengths", lengths, (512, 2048, 8192) if quick else paper.LENGTHS)
    all_k = _numbers("k", k, (128, 256) if quick else paper.ROWS)
    check_out(out)
    from ..bench import grid as grid_bench
    from ..bench import grid_view

    def sheets(records: list[Record]) -> list[Sheet]:
        found = grid_view.read_grid(records)
        return [] if found is None else grid_view.sheets(found)

    with user_input("bench grid"):
        settings = grid_bench.GridBench(
            lengths=all_lengths,
            ks=all_k,
            limit=limit,
            threads=threads,
            seed=seed,
            memory=memory,
            **_given(defaults, dim=dim, num_heads=heads, tokens=tokens, rounds=rounds),
        )
    _run(grid_bench.BENCH, grid_bench.cells(settings), sheets, settings, out, again)


def budget(
    lengths: Lengths = None,
    k: ManyK = None,
    shapes: Annotated[str, typer.Option(help="Models, with commas.")] = ",".join(get_args(Shape)),
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of every batch.", min=1, max=limits.COUNT)
    ] = None,
    dim: Width = None,
    heads: Heads = None,
    depth: Depth = None,
    rounds: Rounds = None,
    threads: Threads = 2,
    seed: Seed = 0,
    quick: Quick = False,
    again: Again = False,
    out: ResumedOut = Path("results/bench-budget.jsonl"),
) -> None:
    """The same tokens a batch in ever longer inputs: Linformer stays flat, vanilla grows."""
    defaults = {"tokens": 4096, "dim": 64, "num_heads": 2, "rounds": 3} if quick else {}
    given = _given(defaults, tokens=tokens, dim=dim, num_heads=heads, depth=depth, rounds=rounds)
    if lengths is not None or quick:
        given["lengths"] = _numbers("lengths", lengths, (256, 1024, 4096))
    if k is not None:
        given["ks"] = whole_numbers("k", k)
    kinds = names("shapes", shapes)
    check_out(out)
    from ..bench import budget as budget_bench
    from ..bench import budget_view

    with user_input("bench budget"):
        settings = budget_bench.BudgetBench(
            shapes=cast("tuple[Shape, ...]", kinds), threads=threads, seed=seed, **given
        )
    _run(budget_bench.BENCH, budget_bench.cells(settings), budget_view.sheets, settings, out, again)


def peers(
    lengths: Lengths = None,
    k: Annotated[
        int | None,
        typer.Option(help="Rows, landmarks, features, window.", min=1, max=limits.LENGTH),
    ] = None,
    dim: Width = None,
    heads: Heads = None,
    depth: Depth = None,
    batch: Batch = 1,
    who: Annotated[str, typer.Option("--peers", help="Who takes part, with commas.")] = ",".join(
        PEERS
    ),
    what: Annotated[str, typer.Option(help="What to measure, with commas.")] = ",".join(
        get_args(What)
    ),
    rounds: Rounds = None,
    limit: Annotated[
        float,
        typer.Option(help="Leave out a peer that takes more seconds a run.", callback=finite),
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
    all_lengths = _numbers("lengths", lengths, (512,) if quick else (512, 1024, 2048, 4096))
    all_peers, kinds = names("peers", who), names("what", what)
    check_out(out)
    from ..bench import peers as peers_bench
    from ..bench import peers_view
    from ..bench.contestants import Point

    with user_input("bench peers"):
        settings = peers_bench.PeersBench(
            points=tuple(Point(length=length, batch=batch, **sizes) for length in all_lengths),
            peers=all_peers,
            what=cast("tuple[What, ...]", kinds),
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
    dim: Width = None,
    heads: Heads = None,
    depth: Depth = None,
    k: Annotated[int | None, typer.Option(help="Slots.", min=1, max=limits.LENGTH)] = None,
    window: Annotated[
        int | None, typer.Option(help="Tokens of a window.", min=1, max=limits.LENGTH)
    ] = None,
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
    given = _given(
        defaults, dim=dim, num_heads=heads, depth=depth, k=k, window=window, rounds=rounds
    )
    if contexts is not None or quick:
        given["contexts"] = _numbers("contexts", contexts, (512, 4096))
    check_out(out)
    from ..bench import decode as decode_bench
    from ..bench import decode_view

    with user_input("bench decode"):
        settings = decode_bench.DecodeBench(
            batch=batch, threads=threads, seed=seed, memory=memory, **given
        )
    _run(decode_bench.BENCH, decode_bench.cells(settings), decode_view.sheets, settings, out, again)


def roofline(
    lengths: Lengths = None,
    k: K = None,
    dim: Width = None,
    heads: Heads = None,
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
    all_lengths = _numbers("lengths", lengths, (1024,) if quick else (4096,))
    check_out(out)
    from ..bench import roofline as roofline_bench
    from ..bench import roofline_view
    from ..bench.contestants import Point

    with user_input("bench roofline"):
        settings = roofline_bench.RooflineBench(
            points=tuple(Point(length=length, batch=batch, **sizes) for length in all_lengths),
            rounds=(3 if quick else 20) if rounds is None else rounds,
            threads=threads,
            seed=seed,
            gemm_size=512 if quick else 2048,
        )
    cells = roofline_bench.cells(settings)
    _run(roofline_bench.BENCH, cells, roofline_view.sheets, settings, out, again)


def _run(
    bench: str,
    cells: "Sequence[Cell]",
    sheets: Callable[[list[Record]], list[Sheet]],
    settings: Any,
    out: Path,
    again: bool,
    notes: Sequence[str] = (),
) -> None:
    """Measure what has no record, then show all cells that were asked for."""
    from ..measure.cells import left_to_measure, measure_cells
    from ..measure.machine import describe

    machine = describe(seed=settings.seed, threads=settings.threads)
    console, aside = Console(), Console(stderr=True)
    known = records_in(out, aside)
    file = open_records(out)
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
