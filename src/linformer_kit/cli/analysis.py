"""`linformer spectrum` and `linformer heads`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..analysis import heads_view, spectrum_view
from ..analysis.texts import check_text
from ..bench.machine import describe
from ..bench.records import RecordFile
from ..bench.timing import fixed_threads
from ..figures.sheet import Sheet
from .bench import Seed, Threads, print_plainly, progress_line, tell_where
from .mistakes import users_mistakes
from .sheets import show_sheets

Texts = Annotated[
    list[str],
    typer.Option("--text", help="A file of text, or python-docs; may be given again."),
]
Out = Annotated[Path, typer.Option(help="Where the record is appended, as a JSON line.")]


def spectrum(
    model: Annotated[str, typer.Argument(help="A folder, a run, or a name of the hub.")],
    text: Texts,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a piece (default: 512, or what the model takes).")
    ] = None,
    pieces: Annotated[int, typer.Option(help="How many pieces of text to read.")] = 16,
    rank: Annotated[int | None, typer.Option(help="The rank of the heat map.")] = None,
    threads: Threads = 2,
    seed: Seed = 0,
    out: Out = Path("results/spectrum.jsonl"),
) -> None:
    """Is the attention of an encoder low rank? The paper's Figure 1, and a k for each layer."""
    from ..analysis.encoders import load_encoder
    from ..analysis.spectrum import SpectrumOptions
    from ..analysis.spectrum import spectrum as measure

    with users_mistakes(), fixed_threads(threads):
        for one in text:
            check_text(one)
        encoder = load_encoder(model)
        length = min(512, encoder.longest or 512) if length is None else length
        options = SpectrumOptions(
            length=length, pieces=pieces, rank=rank or min(128, max(1, length // 4)), seed=seed
        )
        file = RecordFile(out)
        with file, progress_line(Console(stderr=True)) as say:
            record = measure(
                encoder,
                text,
                options,
                machine=describe(seed=seed, threads=threads),
                say=say,
            )
            file.append(record)
    words = spectrum_view.in_words(record)
    _show(spectrum_view.sheet(record), words, file)


def heads(
    run: Annotated[str, typer.Argument(help="A run, or the folder of a Linformer.")],
    text: Texts,
    layer: Annotated[int, typer.Option(help="The layer, from 1.")] = 1,
    head: Annotated[int, typer.Option(help="The head, from 1.")] = 1,
    length: Annotated[int | None, typer.Option(help="Tokens of the text that is read.")] = None,
    threads: Threads = 2,
    seed: Seed = 0,
    out: Out = Path("results/heads.jsonl"),
) -> None:
    """What a head of a Linformer attends to: the n x k weights, E, and what each row looks at."""
    from ..analysis.encoders import load_encoder
    from ..analysis.heads import HeadsOptions, look_at_heads

    with users_mistakes(), fixed_threads(threads):
        for one in text:
            check_text(one)
        options = HeadsOptions(layer=layer, head=head, length=length)
        record = look_at_heads(
            load_encoder(run), text, options, machine=describe(seed=seed, threads=threads)
        )
        file = RecordFile(out)
        with file:
            file.append(record)
    _show(heads_view.sheet(record), None, file)


def _show(sheet: Sheet, words: str | None, file: RecordFile) -> None:
    console = Console()
    show_sheets(console, [sheet])
    if words is not None:
        print_plainly(console, words)
    tell_where(console, file, stopped=False)


COMMANDS = (spectrum, heads)
