"""`linformer index` and `linformer search`: search by meaning in a folder of documents."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..artifact import escaped
from ..config import limits
from ..errors import UserError
from ..measure import quantities
from .border import one_line
from .libraries import install_hint, silence_libraries
from .progress import corpus_progress

SHOWN = 300  # characters of a passage on a terminal
INDENT = "    "


def index(
    documents: Annotated[Path, typer.Argument(help="A folder of texts (.txt, .md, .rst).")],
    model: Annotated[
        Path, typer.Option(help="A run of the task embed, or a folder of sentence-transformers.")
    ],
    out: Annotated[Path, typer.Option(help="The folder of the index, new or to bring up to date.")],
    passage: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a passage (default: 256, or what the model reads).",
            min=1,
            max=limits.LENGTH,
        ),
    ] = None,
    documents_moved: Annotated[
        bool,
        typer.Option(
            "--documents-moved",
            help="The documents of the index are in this folder now. Otherwise documents of "
            "another folder are refused.",
        ),
    ] = False,
    follow_links: Annotated[
        bool, typer.Option("--follow-links", help="Also read what links out of the folder lead to.")
    ] = False,
    allow_removals: Annotated[
        bool,
        typer.Option(
            "--allow-removals",
            help="Update the index even if more than half of its documents are gone.",
        ),
    ] = False,
) -> None:
    """Build the index of a folder of documents, or bring it up to date."""
    with install_hint():
        silence_libraries()
        from ..search.build import update
        from ..search.embedder import PASSAGE, Embedder
        from ..search.folder import FINISHED
        from ..search.index import Index

        embedder = Embedder(model)
        chosen = min(PASSAGE, embedder.longest) if passage is None else passage
        if chosen > embedder.longest:
            raise UserError(f"--passage must be at most {embedder.longest}, what the model reads.")
        try:
            with corpus_progress() as tell:
                changes = update(
                    documents,
                    out,
                    embedder,
                    passage=chosen,
                    say=lambda line: typer.echo(one_line(f"linformer: {line}"), err=True),
                    tell=lambda what, done, total: tell(f"index: {what}", done, total),
                    documents_moved=documents_moved,
                    follow_links=follow_links,
                    allow_removals=allow_removals,
                )
        except KeyboardInterrupt:
            if (out / FINISHED).exists():
                typer.echo(
                    f"linformer: the documents that were read are kept in {out}. The same command "
                    "resumes.",
                    err=True,
                )
            raise
        made = Index(out)
    typer.echo(
        f"{out}: {quantities.count(len(made.about['documents']), 'document')}, "
        f"{quantities.count(len(made.places), 'passage')}; "
        f"{changes.new:,} new, {changes.changed:,} changed, {changes.removed:,} removed, "
        f"{changes.unchanged:,} unchanged; {changes.tokens:,} tokens read."
    )


def search(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="A folder of linformer index.")],
    query: Annotated[str, typer.Argument(help="What to search for.")],
    top: Annotated[int, typer.Option(help="How many documents.", min=1, max=limits.COUNT)] = 5,
    model: Annotated[
        Path | None, typer.Option(help="Where the model of the index is now, if it was moved.")
    ] = None,
) -> None:
    """Search an index: documents with the passage that matched. JSON when not on a terminal."""
    with install_hint():
        silence_libraries()
        from ..search.embedder import Embedder
        from ..search.index import Index
        from ..search.passages import passage_text

        found = Index(folder)
        made_by = Path(found.about["model"]["folder"])
        if model is None and not made_by.is_dir():
            raise UserError(
                f"the model of the index, {made_by}, is gone. Say where it is now with --model."
            )
        embedder = Embedder(model or made_by)
        found.check_model(embedder)
        vector, note = embedder.query(query)
        console = Console()
        if note is not None:
            typer.echo(f"linformer: {note}", err=True)
        for hit in found.search(vector, top):
            people = sys.stdout.isatty()
            text, problem = passage_text(found, hit, longest=SHOWN if people else None)
            if problem is not None:
                typer.echo(one_line(f"linformer: {problem}"), err=True)
            if people:
                line = f"{hit.score:.3f}  {hit.path}  {hit.start}-{hit.end}"
                typer.echo(one_line(escaped(line)))
                for row in Text(one_line(text or "")).wrap(console, console.width - len(INDENT)):
                    typer.echo(f"{INDENT}{row.plain.rstrip()}")
            else:
                line = json.dumps({**hit._asdict(), "passage": text}, ensure_ascii=False)
                typer.echo(escaped(line))


COMMANDS = (index, search)
