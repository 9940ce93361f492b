"""Building the index of a folder of documents, and bringing it up to date.

First every document is read and known by its digest, then the model reads those that are in
neither the index nor the work of an interrupted build, and at last the index is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..artifact import digest
from ..data import files
from ..errors import UserError, listed, reason_of, user_input
from .embedder import OVERLAP, tokens_of
from .folder import (
    INDEX,
    Content,
    FinishedDocuments,
    locked,
    remove_leftovers,
    write,
)
from .index import EXACT, KIND, VERSION, Index, new_graph

if TYPE_CHECKING:
    from .embedder import Embedder


@dataclass
class Changes:
    """What an update has done."""

    new: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    tokens: int = 0  # read now


class Document(NamedTuple):
    """A text to index."""

    name: str
    path: Path
    digest: str
    size: int  # bytes


Tell = Callable[[str, int, int], None]  # what is done, and of how many bytes


def update(
    documents: Path,
    folder: Path,
    embedder: Embedder,
    *,
    passage: int,
    say: Callable[[str], None],
    tell: Tell = lambda what, done, total: None,
    documents_moved: bool = False,
    follow_links: bool = False,
    allow_removals: bool = False,
) -> Changes:
    """Make the index of a folder of documents, or bring it up to date by their contents.

    An index is of one folder of documents; `documents_moved` says that this folder is now here.
    Links that lead out of it are followed with `follow_links`. That most documents of the index are
    gone is an error unless `allow_removals` is given. A build that is interrupted keeps the
    documents it has read, and the next one reads the others.
    """
    if not documents.is_dir():
        raise UserError(f"there is no folder {documents}.")
    with locked(folder):
        old = _known(folder, embedder, passage)
        _check_source(folder, old, documents, moved=documents_moved)
        remove_leftovers(folder)
        found = _survey(documents, say, follow_links=follow_links)
        if old is not None and not allow_removals:
            _check_removals(folder, old, documents, found)
        key = f"{embedder.digest()} {passage} {OVERLAP}"
        finished = FinishedDocuments(folder, key, embedder.size)
        contents = _Contents(embedder, passage, old, finished)
        listed = _read(found, contents, say, tell)
        if not listed:
            raise UserError(f"{documents} holds no text to index.")
        about = {
            "kind": KIND,
            "version": VERSION,
            "source": str(documents.resolve()),
            "passage": passage,
            "model": {"folder": str(embedder.folder.resolve()), "digest": embedder.digest()},
        }
        _write(folder, about, listed, old)
        finished.remove()
    return _changes(old, [document for document, _ in listed], contents.tokens_read)


@dataclass
class _Contents:
    """Vectors and places of documents: those of the index, those of earlier builds, or read now."""

    embedder: Embedder
    passage: int
    old: Index | None
    finished: FinishedDocuments
    tokens_read: int = 0

    def __post_init__(self) -> None:
        known = [] if self.old is None else self.old.about["documents"]
        self.numbers = {one["digest"]: number for number, one in enumerate(known)}

    def __contains__(self, document: Document) -> bool:
        return document.digest in self.numbers or document.digest in self.finished.known

    def of(self, document: Document) -> Content:
        if document.digest in self.finished.known:
            return self.finished.known[document.digest]
        assert self.old is not None
        number = self.numbers[document.digest]
        here = self.old.places[:, 0] == number
        tokens = self.old.about["documents"][number]["tokens"]
        return Content(self.old.vectors[here], self.old.places[here][:, 1:], tokens)

    def read(self, text: str, document: Document, tell: Callable[[float], None]) -> bool:
        """Whether it has a token. `tell` gets the share that is done."""
        pieces = self.embedder.passages(text, self.passage)
        if not pieces:
            return False
        rows = [piece.ids for piece in pieces]
        vectors = self.embedder.vectors(rows, lambda done: tell(done / len(rows)))
        spans = np.array([(piece.start, piece.end) for piece in pieces], dtype=np.int64)
        self.finished.add(document.digest, Content(vectors, spans, tokens_of(pieces)))
        self.tokens_read += tokens_of(pieces)
        return True


def _read(
    found: list[Document], contents: _Contents, say: Callable[[str], None], tell: Tell
) -> list[tuple[Document, Content]]:
    """The documents with their contents, without those that have no token or are gone now."""
    left = list({one.digest: one for one in found if one not in contents}.values())
    done, total = 0, sum(one.size for one in left)
    kept = sum(one.digest in contents.finished.known for one in found)
    earlier = f" {kept:,} were read by a build that was interrupted." if kept else ""
    if left or kept:
        say(f"{len(left):,} of {len(found):,} documents to read, {total / 1e6:,.1f} MB.{earlier}")
    for number, document in enumerate(left, start=1):
        what = f"{number:,} of {len(left):,} documents"

        def part(share: float, what: str = what, at: int = done, size: int = document.size) -> None:
            tell(what, at + int(share * size), total)

        part(0.0)
        try:
            text, now = _text(document.name, document.path)
        except UserError as error:
            say(f"{document.name}: not read: {reason_of(error)}")
            continue
        if now.digest != document.digest:
            say(f"{document.name}: not read: it is being changed. Give the command again.")
        elif not contents.read(text, document, part):
            say(f"{document.name}: not read: it has no token for this model.")
        done += document.size
    return [(one, contents.of(one)) for one in found if one in contents]


def _write(
    folder: Path, about: dict[str, Any], listed: list[tuple[Document, Content]], old: Index | None
) -> None:
    places = [
        np.concatenate([np.full((len(content.spans), 1), number), content.spans], axis=1)
        for number, (_, content) in enumerate(listed)
    ]
    vectors = np.concatenate([content.vectors for _, content in listed])
    arrays: dict[str, Any] = {"vectors": vectors, "places": np.concatenate(places)}
    if len(vectors) > EXACT:
        arrays["graph"] = lambda path: _write_graph(path, vectors)
    documents = [
        {"path": document.name, "digest": document.digest, "tokens": content.tokens}
        for document, content in listed
    ]
    write(folder, {**about, "documents": documents}, arrays, None if old is None else old.files())


def _changes(old: Index | None, listed: list[Document], tokens: int) -> Changes:
    before = {} if old is None else {d["path"]: d["digest"] for d in old.about["documents"]}
    changes = Changes(tokens=tokens, removed=len(set(before) - {one.name for one in listed}))
    for one in listed:
        if one.name not in before:
            changes.new += 1
        elif before[one.name] == one.digest:
            changes.unchanged += 1
        else:
            changes.changed += 1
    return changes


def _known(folder: Path, embedder: Embedder, passage: int) -> Index | None:
    """The index that is there already, by the same model; None if there is none yet."""
    if not (folder / INDEX).is_file():
        return None
    old = Index(folder)
    old.check_model(embedder)
    if old.about["passage"] != passage:
        raise UserError(
            f"the index {folder} has passages of {old.about['passage']} tokens: got {passage}. Use "
            "the same, or build another index."
        )
    return old


def _check_source(folder: Path, old: Index | None, documents: Path, *, moved: bool) -> None:
    """Refuse documents of another folder, which would replace all that is in the index."""
    if old is None:
        if moved:
            raise UserError(
                f"--documents-moved is for an index that exists: there is none in {folder}. Leave "
                "the option out to build it."
            )
        return
    source = Path(old.about["source"])
    if moved or _same_folder(source, documents):
        return
    raise UserError(
        f"the index {folder} is of the documents in {source}: got {documents.resolve()}. Name "
        "another index with --out, or give --documents-moved if these are the same documents in "
        "another place."
    )


def _same_folder(one: Path, other: Path) -> bool:
    with user_input(f"cannot read {other}"):
        if one.resolve() == other.resolve():
            return True
        return one.exists() and other.exists() and one.samefile(other)


def _check_removals(folder: Path, old: Index, documents: Path, found: list[Document]) -> None:
    """Refuse to remove most of what is in the index: these may be other documents."""
    names, digests = {one.name for one in found}, {one.digest for one in found}
    before = old.about["documents"]
    gone = [d["path"] for d in before if d["path"] not in names and d["digest"] not in digests]
    if 2 * len(gone) > len(before):
        raise UserError(
            f"{len(gone):,} of the {len(before):,} documents of the index {folder} are gone from "
            f"{documents} ({listed(gone)}): nothing is changed. If they are to be removed from the "
            "index, give --allow-removals; otherwise name another index with --out."
        )


def _survey(folder: Path, say: Callable[[str], None], *, follow_links: bool) -> list[Document]:
    """The texts below a folder by their names there; what is not read is said."""
    leaving: list[Path] = []
    with user_input(f"cannot read {folder}"):
        every = sorted(files.below(folder, leaving=None if follow_links else leaving))
    if leaving:
        names = [path.relative_to(folder).as_posix() for path in sorted(leaving)]
        say(
            f"{len(names):,} links lead out of {folder} and are not followed: {listed(names)}. "
            "Give --follow-links to read what they lead to."
        )
    others = [path.name for path in every if files.kind_of(path) not in files.TEXT_SUFFIXES]
    if others:
        count = f"{len(others):,} of {len(every):,} files"
        suffixes = ", ".join(files.TEXT_SUFFIXES)
        say(f"{count} are not read, for they end in none of {suffixes}: {listed(others)}")
    found = []
    for path in every:
        if files.kind_of(path) in files.TEXT_SUFFIXES:
            name = path.relative_to(folder).as_posix()
            try:
                text, document = _text(name, path)
            except UserError as error:
                say(f"{name}: not read: {reason_of(error)}")
                continue
            if text.strip():
                found.append(document)
            else:
                say(f"{name}: not read: it is empty.")
    return found


def _text(name: str, path: Path) -> tuple[str, Document]:
    text = files.whole(path, files.Limits())
    content = text.encode("utf-8")
    return text, Document(name, path, digest(content), len(content))


def _write_graph(path: Path, vectors: np.ndarray) -> None:
    graph = new_graph(vectors.shape[1])
    graph.add(np.arange(len(vectors)), vectors)
    graph.save(str(path))
