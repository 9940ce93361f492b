"""The index of a folder of documents: vectors of passages, and where each passage is.

`folder` holds the files and how they are replaced. Up to `EXACT` passages every vector is compared,
above that a graph finds candidates.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..artifact import digest
from ..data import files
from ..errors import UserError, shown, user_input
from .folder import (
    ARRAYS,
    INDEX,
    array_path,
    check_digest,
    own_digest,
)

if TYPE_CHECKING:
    from .embedder import Embedder

KIND = "linformer search index"
VERSION = 2  # 1: without the digest of index.json
EXACT = 50_000  # passages up to which every vector is compared
BUILD_AGAIN = "Build it again: linformer index DOCUMENTS --model MODEL --out NEW_FOLDER."


class Hit(NamedTuple):
    """A passage that is near a query."""

    path: str
    start: int
    end: int
    score: float


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
            self._check()

    def _open(self) -> None:
        self.vectors = self._array("vectors", np.float32)
        self.places = self._array("places", np.int64)

        if "graph" in self._digests:
            self._checked("graph")

    @property
    def _digests(self) -> dict[str, str]:
        return self.about.get("digests", {})

    def _checked(self, kind: str) -> Path:
        path = self.path(kind)
        path.stat()  # FileNotFoundError
        files.size_of(path)  # a FIFO would block
        check_digest(path, self._digests.get(kind))
        return path

    def _array(self, kind: str, dtype: Any) -> np.ndarray:
        path = self._checked(kind)
        array = np.lib.format.open_memmap(path, mode="r")
        if array.dtype != dtype or array.ndim != 2:
            raise ValueError(
                f"{path.name} must hold a matrix of {np.dtype(dtype)}: got {array.dtype} in "
                f"{array.ndim} dimensions"
            )
        return array

    def _check(self) -> None:
        """Refuse arrays that no build has written, which an index without digests may have."""
        rows, count = self.places, len(self.about["documents"])
        if rows.shape != (len(self.vectors), 3):
            raise ValueError(
                f"its vectors and places must be of the same passages: got {self.vectors.shape} "
                f"and {rows.shape}"
            )
        if not np.array_equal(np.unique(rows[:, 0]), np.arange(count)):
            raise ValueError(f"its places must be of each of its {count:,} documents")
        if not (np.all(rows[:, 1] >= 0) and np.all(rows[:, 1] <= rows[:, 2])):
            raise ValueError("its places must begin at 0 or later, and before they end")
        if not np.abs(self.vectors).max(initial=0.0) < 1.01:  # or NaN
            raise ValueError("its vectors must have norm 1: got NaN or a larger component")

    def path(self, kind: str) -> Path:
        return array_path(self.folder, kind, self.about["generation"])

    def files(self) -> dict[str, Any]:
        """The generation with its digests, which index.json of earlier versions does not hold."""
        digests = self._digests
        if not digests:
            kinds = ["vectors", "places"] + ["graph"] * (len(self.vectors) > EXACT)
            paths = {kind: self.path(kind) for kind in kinds}
            digests = {kind: digest(path) for kind, path in paths.items() if path.is_file()}
        return {"generation": self.about["generation"], "digests": digests}

    def check_model(self, embedder: Embedder) -> None:
        """Refuse a model that has not made this index: it would hold vectors of two models."""
        made_by = self.about["model"]
        if made_by["digest"] != embedder.digest():
            raise UserError(
                f"the index {self.folder} was built by another model than {embedder.folder}: by "
                f"{made_by['folder']}, with other weights or settings. Use that model, or build "
                "another index."
            )
        if self.vectors.shape[1] != embedder.size:
            raise UserError(
                f"the vectors of the index {self.folder} must have the {embedder.size} components "
                f"of its model: got {self.vectors.shape[1]}. {BUILD_AGAIN}"
            )

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
        if len(self.vectors) <= EXACT or "graph" not in self._digests:
            scores = self.vectors @ vector.astype(np.float32)
            order = np.argsort(-scores, kind="stable")
            return order, scores[order]
        graph, found = self.path("graph"), new_graph(self.vectors.shape[1])
        with user_input(f"cannot read {graph}", remedy=BUILD_AGAIN):
            check_digest(graph, self._digests["graph"])  # a damaged one crashes its reader
            found.load(str(graph))
        near = found.search(vector.astype(np.float32), min(20 * top, len(self.vectors)))
        order = np.asarray(near.keys, dtype=np.int64)
        return order, self.vectors[order] @ vector.astype(np.float32)


def read_about(folder: Path) -> dict[str, Any]:
    """index.json of a folder that is an index, with values as a build writes them."""
    if not (folder / INDEX).is_file():
        raise UserError(f"{folder} is no index: it has no {INDEX}. Build one with linformer index.")
    with user_input(f"cannot read the index {folder}", remedy=BUILD_AGAIN):
        about = json.loads((folder / INDEX).read_bytes())
        if not isinstance(about, dict) or about.get("kind") != KIND:
            raise ValueError(f"{INDEX} is of something else")
        version = _value(about, "version", int)
        if version > VERSION:
            raise ValueError(f"it has version {version}, and this reads up to {VERSION}")
        if version > 1 and about["digest"] != (found := own_digest(about)):
            raise ValueError(
                f"{INDEX} must have the digest {about['digest']} that is in it: got {found}. It is "
                "damaged, or was edited"
            )
        _check_about(about)
    return about


def _check_about(about: dict[str, Any]) -> None:
    _value(about, "source", str)
    _value(about, "passage", int)
    _value(about, "generation", int)
    for name in ("folder", "digest"):
        _value(_value(about, "model", dict), name, str)
    if "digests" in about or about["version"] > 1:
        digests = _value(about, "digests", dict)
        for kind in {"vectors", "places", *digests}:
            _value(digests, kind, str)
            if kind not in ARRAYS:
                raise ValueError(f"digests must be of {', '.join(ARRAYS)}: got {kind!r}")
    paths = set()
    for one in _value(about, "documents", list):
        if not isinstance(one, dict):
            raise ValueError(f"documents must hold objects: got {shown(one)}")
        _value(one, "digest", str)
        _value(one, "tokens", int)
        path = Path(_value(one, "path", str))
        if path.is_absolute() or ".." in path.parts or path in paths:
            raise ValueError(f"each path must be one below the documents: got {shown(one)}")
        paths.add(path)


def _value(holder: dict[str, Any], name: str, kind: Any) -> Any:
    """A value of index.json: text without NUL, a number from 1 on, an object or a list."""
    value: Any = holder[name]
    good = (
        isinstance(value, kind)
        and not isinstance(value, bool)
        and bool(value)
        and not (kind is int and value < 1)
    )
    if not good or (kind is str and "\0" in value):
        words = {str: "text", int: "a number from 1 on", dict: "an object", list: "a list"}
        raise ValueError(f"{name} must be {words[kind]}: got {shown(value)}")
    return value


def new_graph(size: int) -> Any:
    try:
        from usearch.index import Index as Graph
    except ModuleNotFoundError:
        raise UserError(
            f"more than {EXACT:,} passages need usearch: pip install 'linformer-kit[embed]'"
        ) from None
    return Graph(ndim=size, metric="ip", dtype="f32")
