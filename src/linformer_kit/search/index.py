"""The index of a folder of documents: vectors of passages, and where each passage is.

index.json                what the index is of: the model, the documents with their digests
vectors-<generation>.npy  (P, M) float32
places-<generation>.npy   (P, 3) document, first character, end
graph-<generation>.usearch  the graph of approximate search, above `EXACT` passages

A new generation is written beside the old one; index.json then names it, in one atomic step, and
the files that the old index.json named are removed. Nothing else in the folder is touched.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..data import files
from ..errors import UserError, reason_of, user_input
from ..outputs import json_bytes, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .embedder import Embedder

INDEX = "index.json"
KIND = "linformer search index"
VERSION = 1
TEXTS = (".txt", ".md", ".rst", ".text")
EXACT = 50_000  # passages up to which every vector is compared
SHOWN = 5


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
        with user_input(f"cannot read the index {folder}", remedy="Build it again elsewhere."):
            generation = int(self.about["generation"])
            self.vectors = _array(folder / f"vectors-{generation}.npy", np.float32)
            self.places = _array(folder / f"places-{generation}.npy", np.int64)
            if len(self.vectors) != len(self.places) or self.vectors.ndim != 2:
                raise ValueError("its files do not belong together")

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
        graph = self.folder / f"graph-{self.about['generation']}.usearch"
        if len(self.vectors) <= EXACT or not graph.is_file():
            scores = self.vectors @ vector.astype(np.float32)
            order = np.argsort(-scores, kind="stable")
            return order, scores[order]
        found = _graph(self.vectors.shape[1])
        with user_input(f"cannot read {graph}"):
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
) -> Changes:
    """Make the index of a folder of documents, or bring it up to date by their contents."""
    about = _known(folder, embedder, passage)
    old = None if about is None else Index(folder)
    kept: dict[str, dict[str, Any]] = {}
    before: dict[str, str] = {}
    for number, one in enumerate([] if about is None else about["documents"]):
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
        "generation": 1 if about is None else int(about["generation"]) + 1,
        "source": str(documents.resolve()),
        "passage": passage,
        "model": {"folder": str(embedder.folder.resolve()), "digest": embedder.digest()},
        "documents": listed,
    }
    _write(folder, written, np.concatenate(rows), np.concatenate(places), about)
    return changes


def _known(folder: Path, embedder: Embedder, passage: int) -> dict[str, Any] | None:
    """What is there already, by the same model; None if the folder is new or empty."""
    with user_input(f"cannot write to {folder}"):
        if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
            return None
        if not folder.is_dir() or not (folder / INDEX).is_file():
            raise UserError(
                f"{folder} exists and is no index: it is left alone. Name another with --out."
            )
    about = read_about(folder)
    check_model(folder, about, embedder.digest(), str(embedder.folder))
    if about["passage"] != passage:
        raise UserError(
            f"the index {folder} has passages of {about['passage']} tokens: got {passage}. Use the "
            "same, or build another index."
        )
    return about


def _documents(folder: Path, say: Callable[[str], None]) -> list[tuple[str, Path]]:
    """The text files below a folder by their names there; what is not text is said."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}.")
    with user_input(f"cannot read {folder}"):
        every = sorted(files.below(folder))
    texts = [path for path in every if files.kind_of(path) in TEXTS]
    others = [path.name for path in every if files.kind_of(path) not in TEXTS]
    if others:
        shown = ", ".join(others[:SHOWN]) + (", ..." if len(others) > SHOWN else "")
        count = f"{len(others):,} of {len(every):,} files"
        say(f"{count} are not read, for they end in none of {', '.join(TEXTS)}: {shown}")
    return [(path.relative_to(folder).as_posix(), path) for path in texts]


def _write(
    folder: Path,
    about: dict[str, Any],
    vectors: np.ndarray,
    places: np.ndarray,
    before: dict[str, Any] | None,
) -> None:
    generation = about["generation"]
    with user_input(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in (("vectors", vectors), ("places", places)):
            np.save(folder / f"{name}-{generation}.npy", array, allow_pickle=False)
        if len(vectors) > EXACT:
            graph = _graph(vectors.shape[1])
            graph.add(np.arange(len(vectors)), vectors)
            graph.save(str(folder / f"graph-{generation}.usearch"))
    write_atomic(folder / INDEX, json_bytes(about))
    if before is not None:
        for name in ("vectors-{}.npy", "places-{}.npy", "graph-{}.usearch"):
            (folder / name.format(before["generation"])).unlink(missing_ok=True)


def _graph(size: int) -> Any:
    try:
        from usearch.index import Index as Graph
    except ModuleNotFoundError:
        raise UserError(
            f"more than {EXACT:,} passages need usearch: pip install 'linformer-kit[embed]'"
        ) from None
    return Graph(ndim=size, metric="ip", dtype="f32")


def _array(path: Path, kind: Any) -> np.ndarray:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype != kind:
        raise ValueError(f"{path.name} holds {array.dtype}")
    return array
