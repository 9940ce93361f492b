"""`linformer index` and `linformer search`: search by meaning in a folder of documents."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..config import limits
from ..errors import UserError
from ..outputs import escaped
from .libraries import install_hint, silence_libraries


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
) -> None:
    """Build the index of a folder of documents, or bring it up to date."""
    with install_hint():
        silence_libraries()
        from ..search.embedder import PASSAGE, Embedder
        from ..search.index import Index, update

        embedder = Embedder(model)
        chosen = min(PASSAGE, embedder.longest) if passage is None else passage
        if chosen > embedder.longest:
            raise UserError(f"--passage must be at most {embedder.longest}, what the model reads.")
        changes = update(
            documents,
            out,
            embedder,
            passage=chosen,
            say=lambda line: typer.echo(f"linformer: {line}", err=True),
            documents_moved=documents_moved,
        )
        made = Index(out)
    typer.echo(
        f"{out}: {len(made.about['documents']):,} documents, {len(made.places):,} passages; "
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
        embedder = Embedder(Path(found.about["model"]["folder"]) if model is None else model)
        found.check_model(embedder)
        vector, note = embedder.query(query)
        if note is not None:
            typer.echo(f"linformer: {note}", err=True)
        for hit in found.search(vector, top):
            text, problem = passage_text(found, hit)
            if problem is not None:
                typer.echo(f"linformer: {problem}", err=True)
            if sys.stdout.isatty():
                typer.echo(escaped(f"{hit.score:.3f}  {hit.path}  {hit.start}-{hit.end}"))
                typer.echo(f"    {' '.join((text or '').split())[:300]}")
            else:
                line = json.dumps({**hit._asdict(), "passage": text}, ensure_ascii=False)
                typer.echo(escaped(line))


COMMANDS = (index, search)
