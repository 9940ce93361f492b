"""`linformer spectrum` and `linformer heads`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ..config import limits
from ..errors import user_input
from ..evidence.analysis.texts import check_text
from .bench import check_out, open_records, print_plainly, progress_line, tell_where
from .libraries import silence_libraries
from .options import Seed, Threads
from .sheets import show_sheets

if TYPE_CHECKING:
    from ..evidence.figures.sheet import Sheet
    from ..measure.records import RecordFile

Texts = Annotated[
    list[str],
    typer.Option("--text", help="A file of text, or python-docs; may be given again."),
]
Out = Annotated[Path, typer.Option(help="Where the record is appended, as a JSON line.")]


def spectrum(
    model: Annotated[str, typer.Argument(help="A folder, a run, or a name of the hub.")],
    text: Texts,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a piece (default: 512, or what the model takes).",
            min=1,
            max=limits.LENGTH,
        ),
    ] = None,
    pieces: Annotated[
        int, typer.Option(help="How many pieces of text to read.", min=1, max=limits.COUNT)
    ] = 16,
    rank: Annotated[
        int | None, typer.Option(help="The rank of the heat map.", min=1, max=limits.LENGTH)
    ] = None,
    threads: Threads = 2,
    seed: Seed = 0,
    out: Out = Path("results/spectrum.jsonl"),
) -> None:
    """Is the attention of an encoder low rank? The paper's Figure 1, and a k for each layer."""
    _check_inputs(text, out)
    from ..evidence.analysis import spectrum_view
    from ..evidence.analysis.encoders import load_encoder
    from ..evidence.analysis.spectrum import SpectrumOptions
    from ..evidence.analysis.spectrum import spectrum as measure
    from ..measure.machine import describe
    from ..measure.timing import fixed_threads

    silence_libraries()
    with fixed_threads(threads):
        with user_input("spectrum"):
            encoder = load_encoder(model)
            length = min(512, encoder.longest or 512) if length is None else length
            options = SpectrumOptions(
                length=length, pieces=pieces, rank=rank or min(128, max(1, length // 4)), seed=seed
            )
        file = open_records(out)
        with file, progress_line(Console(stderr=True)) as say:
            machine = describe(seed=seed, threads=threads)
            with user_input("spectrum"):
                record = measure(encoder, text, options, machine=machine, say=say)
            file.append(record)
    words = spectrum_view.in_words(record)
    _show(spectrum_view.sheet(record), words, file)


def heads(
    run: Annotated[str, typer.Argument(help="A run, or the folder of a Linformer.")],
    text: Texts,
    layer: Annotated[int, typer.Option(help="The layer, from 1.", min=1, max=limits.LAYERS)] = 1,
    head: Annotated[int, typer.Option(help="The head, from 1.", min=1, max=limits.WIDTH)] = 1,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens of the text that is read.", min=1, max=limits.LENGTH),
    ] = None,
    threads: Threads = 2,
    seed: Seed = 0,
    out: Out = Path("results/heads.jsonl"),
) -> None:
    """What a head of a Linformer attends to: the n x k weights, E, and what each row looks at."""
    _check_inputs(text, out)
    from ..evidence.analysis import heads_view
    from ..evidence.analysis.encoders import load_encoder
    from ..evidence.analysis.heads import HeadsOptions, analyse_head
    from ..measure.machine import describe
    from ..measure.timing import fixed_threads

    silence_libraries()
    with user_input("heads"), fixed_threads(threads):
        options = HeadsOptions(layer=layer, head=head, length=length)
        record = analyse_head(
            load_encoder(run), text, options, machine=describe(seed=seed, threads=threads)
        )
    with open_records(out) as file:
        file.append(record)
    _show(heads_view.sheet(record), None, file)


def _check_inputs(texts: list[str], out: Path) -> None:
    """Refuse a missing text and a file of something else before a model is loaded."""
    for text in texts:
        with user_input("cannot read the text"):
            check_text(text)
    check_out(out)


def _show(sheet: "Sheet", words: str | None, file: "RecordFile") -> None:
    console = Console()
    show_sheets(console, [sheet])
    if words is not None:
        print_plainly(console, words)
    tell_where(console, file, stopped=False)


COMMANDS = (spectrum, heads)
