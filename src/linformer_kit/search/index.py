"""The index of a folder of documents: vectors of passages, and where each passage is.

`folder` holds the files and how they are replaced. Up to `EXACT` passages every vector is compared,
above that a graph finds candidates.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..data import files
from ..errors import UserError, reason_of, user_input
from ..outputs import file_digest
from .folder import (
    INDEX,
    array_path,
    check_digest,
    check_new,
    locked,
    remove_leftovers,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .embedder import Embedder

KIND = "linformer search index"
VERSION = 1
TEXTS = (".txt", ".md", ".rst", ".text")
EXACT = 50_000  # passages up to which every vector is compared
SHOWN = 5
BUILD_AGAIN = "Build it again: linformer index DOCUMENTS --model MODEL --out NEW_FOLDER."


class Hit(NamedTuple):
    """A passage that is near a query."""

    path: str
    start: int
    end: int
    score: float


@dataclass
class Changes:
    """What an update has done."""

    new: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    tokens: int = 0  # read now


class Index:
    """An index that is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about = read_about(folder)
        with user_input(f"cannot read the index {folder}", remedy=BUILD_AGAIN):
            while True:
                try:
                    self._open()
                    break
                except FileNotFoundError:  # replaced since index.json was read?
                    before, self.about = self.about, read_about(folder)
                    if before["generation"] == self.about["generation"]:
                        raise
            if len(self.vectors) != len(self.places) or self.vectors.ndim != 2:
                raise ValueError("its files do not belong together")

    def _open(self) -> None:
        self.vectors = self._array("vectors", np.float32)
        self.places = self._array("places", np.int64)

    def _array(self, kind: str, dtype: Any) -> np.ndarray:
        path = self.path(kind)
        check_digest(path, self.about.get("digests", {}).get(kind))
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.dtype != dtype:
            raise ValueError(f"{path.name} holds {array.dtype}")
        return array

    def path(self, kind: str) -> Path:
        return array_path(self.folder, kind, int(self.about["generation"]))

    def files(self) -> dict[str, Any]:
        """The generation with its digests, which index.json of earlier versions does not hold."""
        digests = self.about.get("digests")
        if digests is None:
            kinds = ["vectors", "places"] + ["graph"] * (len(self.vectors) > EXACT)
            paths = {kind: self.path(kind) for kind in kinds}
            digests = {kind: file_digest(path) for kind, path in paths.items() if path.is_file()}
        return {"generation": int(self.about["generation"]), "digests": digests}

    def check_model(self, embedder: Embedder) -> None:
        """Refuse a model that has not made this index."""
        check_model(self.folder, self.about, embedder.digest(), str(embedder.folder))

    def search(self, vector: np.ndarray, top: int) -> list[Hit]:
        """The nearest passages, best first; of each document the best one."""
        order, scores = self._nearest(vector, top)
        hits: list[Hit] = []
        seen: set[int] = set()
        for row, score in zip(order.tolist(), scores.tolist(), strict=True):
            document, start, end = self.places[row].tolist()
            if document in seen:
                continue
            seen.add(document)
            path = self.about["documents"][document]["path"]
            hits.append(Hit(path, start, end, float(score)))
            if len(hits) == top:
                break
        return hits

    def _nearest(self, vector: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows by falling cosine: all of them, or some that a graph finds."""
        graph = self.path("graph")
        if len(self.vectors) <= EXACT or not graph.is_file():
            scores = self.vectors @ vector.astype(np.float32)
            order = np.argsort(-scores, kind="stable")
            return order, scores[order]
        found = _graph(self.vectors.shape[1])
        with user_input(f"cannot read {graph}", remedy=BUILD_AGAIN):
            check_digest(graph, self.about.get("digests", {}).get("graph"))
            found.load(str(graph))
        near = found.search(vector.astype(np.float32), min(20 * top, len(self.vectors)))
        order = np.asarray(near.keys, dtype=np.int64)
        return order, self.vectors[order] @ vector.astype(np.float32)


def read_about(folder: Path) -> dict[str, Any]:
    """index.json of a folder that is an index."""
    if not (folder / INDEX).is_file():
        raise UserError(f"{folder} is no index: it has no {INDEX}. Build one with linformer index.")
    with user_input(f"cannot read the index {folder}"):
        about = json.loads((folder / INDEX).read_bytes())
        if not isinstance(about, dict) or about.get("kind") != KIND:
            raise ValueError(f"{INDEX} is of something else")
        if about["version"] != VERSION:
            raise ValueError(f"it has version {about['version']}, and this reads {VERSION}")
    return about


def check_model(folder: Path, about: dict[str, Any], digest: str, name: str) -> None:
    """Refuse vectors of two models in one index."""
    if about["model"]["digest"] != digest:
        raise UserError(
            f"the index {folder} was built by another model than {name}: by "
            f"{about['model']['folder']}, with other weights or settings. Use that model, or build "
            "another index."
        )


def update(
    documents: Path,
    folder: Path,
    embedder: Embedder,
    *,
    passage: int,
    say: Callable[[str], None],
    tell: Callable[[int, int], None] = lambda done, total: None,
    documents_moved: bool = False,
) -> Changes:
    """Make the index of a folder of documents, or bring it up to date by their contents.

    An index is of one folder of documents; `documents_moved` says that this folder is now here.
    """
    if not documents.is_dir():
        raise UserError(f"there is no folder {documents}.")
    with locked(folder):
        old = _known(folder, embedder, passage)
        _check_source(folder, old, documents, moved=documents_moved)
        remove_leftovers(folder)
        return _build(documents, folder, embedder, old, passage=passage, say=say, tell=tell)


def _build(
    documents: Path,
    folder: Path,
    embedder: Embedder,
    old: Index | None,
    *,
    passage: int,
    say: Callable[[str], None],
    tell: Callable[[int, int], None],
) -> Changes:
    kept: dict[str, dict[str, Any]] = {}
    before: dict[str, str] = {}
    for number, one in enumerate([] if old is None else old.about["documents"]):
        kept.setdefault(one["digest"], {**one, "number": number})
        before[one["path"]] = one["digest"]
    found = _documents(documents, say)
    changes = Changes(removed=len(set(before) - {name for name, _ in found}))
    rows: list[np.ndarray] = []
    places: list[np.ndarray] = []
    listed: list[dict[str, Any]] = []
    for done, (name, path) in enumerate(found):
        tell(done, len(found))
        try:
            text = files.whole(path, files.Limits())
        except UserError as error:
            say(f"{name}: not read: {reason_of(error)}")
            changes.removed += name in before
            continue
        digest = hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()
        if not text.strip():
            say(f"{name}: not read: it is empty.")
            changes.removed += name in before
            continue
        if old is not None and digest in kept:
            here = old.places[:, 0] == kept[digest]["number"]
            vectors, spans = old.vectors[here], old.places[here][:, 1:]
            tokens = kept[digest]["tokens"]
        else:
            pieces = embedder.passages(text, passage)
            if not pieces:
                say(f"{name}: not read: it has no token for this model.")
                changes.removed += name in before
                continue
            vectors = embedder.vectors([piece.ids for piece in pieces])
            spans = np.array([(piece.start, piece.end) for piece in pieces], dtype=np.int64)
            tokens = sum(len(piece.ids) for piece in pieces)
            changes.tokens += tokens
        if name not in before:
            changes.new += 1
        elif before[name] == digest:
            changes.unchanged += 1
        else:
            changes.changed += 1
        owner = np.full((len(spans), 1), len(listed), dtype=np.int64)
        rows.append(np.asarray(vectors, dtype=np.float32))
        places.append(np.concatenate([owner, spans], axis=1))
        listed.append({"path": name, "digest": digest, "tokens": tokens})
    if not listed:
        raise UserError(f"{documents} holds no text to index.")
    written = {
        "kind": KIND,
        "version": VERSION,
        "source": str(documents.resolve()),
        "passage": passage,
        "model": {"folder": str(embedder.folder.resolve()), "digest": embedder.digest()},
        "documents": listed,
    }
    vectors = np.concatenate(rows)
    arrays: dict[str, Any] = {"vectors": vectors, "places": np.concatenate(places)}
    if len(vectors) > EXACT:
        arrays["graph"] = lambda path: _write_graph(path, vectors)
    write(folder, written, arrays, None if old is None else old.files())
    return changes


def _known(folder: Path, embedder: Embedder, passage: int) -> Index | None:
    """The index that is there already, by the same model; None if there is none yet."""
    if not (folder / INDEX).is_file():
        check_new(folder)
        return None
    about = read_about(folder)
    check_model(folder, about, embedder.digest(), str(embedder.folder))
    if about["passage"] != passage:
        raise UserError(
            f"the index {folder} has passages of {about['passage']} tokens: got {passage}. Use the "
            "same, or build another index."
        )
    return Index(folder)


def _check_source(folder: Path, old: Index | None, documents: Path, *, moved: bool) -> None:
    """Refuse documents of another folder, which would replace all that is in the index."""
    if old is None:
        if moved:
            raise UserError(
                f"--documents-moved is for an index that exists: there is none in {folder}. Leave "
                "the option out to build it."
            )
        return
    with user_input(f"cannot read the index {folder}", remedy=BUILD_AGAIN):
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


def _documents(folder: Path, say: Callable[[str], None]) -> list[tuple[str, Path]]:
    """The text files below a folder by their names there; what is not text is said."""
    with user_input(f"cannot read {folder}"):
        every = sorted(files.below(folder))
    texts = [path for path in every if files.kind_of(path) in TEXTS]
    others = [path.name for path in every if files.kind_of(path) not in TEXTS]
    if others:
        shown = ", ".join(others[:SHOWN]) + (", ..." if len(others) > SHOWN else "")
        count = f"{len(others):,} of {len(every):,} files"
        say(f"{count} are not read, for they end in none of {', '.join(TEXTS)}: {shown}")
    return [(path.relative_to(folder).as_posix(), path) for path in texts]


def _write_graph(path: Path, vectors: np.ndarray) -> None:
    graph = _graph(vectors.shape[1])
    graph.add(np.arange(len(vectors)), vectors)
    graph.save(str(path))


def _graph(size: int) -> Any:
    try:
        from usearch.index import Index as Graph
    except ModuleNotFoundError:
        raise UserError(
            f"more than {EXACT:,} passages need usearch: pip install 'linformer-kit[embed]'"
        ) from None
    return Graph(ndim=size, metric="ip", dtype="f32")
