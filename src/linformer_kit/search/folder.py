"""The files of an index folder: one writer at a time, generations, and what a killed build left.

index.json                what the index is of, its generation, and the digests of its arrays and
                          of itself
vectors-<generation>.npy  (P, M) float32
places-<generation>.npy   (P, 3) document, first character, end
graph-<generation>.usearch  the graph of approximate search, if there is one
.finished.jsonl           the documents that an unfinished build has read, one a line
.lock                     held while the index is built

A build writes its arrays under temporary names (`.saving-<process>-...`), then an index.json with
their digests under such a name too. Only then do the arrays get their final names, of a generation
that no file has, and index.json last, in one atomic step. A build that is killed at any time
therefore leaves files that are known by a temporary name or by their digest. These are removed by
the next build; nothing else in the folder is touched. What it had read is in .finished.jsonl, of
which every whole line is used again.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..artifact import (
    HOLDER,
    LOCK,
    MAKE_ROOM,
    check_folder,
    digest,
    json_bytes,
    lock,
    publish,
    staged_name,
    staging_path,
    sync,
)
from ..data.files import size_of
from ..errors import UserError, user_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

INDEX = "index.json"
FINISHED = ".finished.jsonl"
FINISHED_KIND = "linformer finished document"
ARRAYS = {"vectors": ".npy", "places": ".npy", "graph": ".usearch"}
ELSEWHERE = "Name another folder with --out."
STAGED = (INDEX, *(f"{kind}{suffix}" for kind, suffix in ARRAYS.items()))


def array_path(folder: Path, kind: str, generation: int) -> Path:
    return folder / f"{kind}-{generation}{ARRAYS[kind]}"


def own_digest(about: Mapping[str, Any]) -> str:
    """Of all that index.json says, but for this digest."""
    return digest(json_bytes({name: value for name, value in about.items() if name != "digest"}))


def check_digest(path: Path, expected: str | None) -> None:
    """Refuse a file that is not the one index.json was written with; None: not known."""
    if expected is not None and (found := digest(path)) != expected:
        raise ValueError(
            f"{path.name} must have the digest {expected} that is in {INDEX}: got {found}. It is "
            "damaged, or of another build"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold an index folder, which is made if it is new. One that is something else is refused."""
    with user_input(f"cannot write to {folder}"):
        index = folder / INDEX
        left = {folder / FINISHED}
        if folder.is_dir() and not index.is_file():
            left.update(leftovers(folder))
        check_folder(
            folder,
            "an index",
            ours=lambda _: index.is_file(),
            started=left.__contains__,
            remedy=ELSEWHERE,
        )
        new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        held = lock(folder / LOCK, folder, holder=folder / HOLDER, remedy=ELSEWHERE)
    with held:
        try:
            yield
        except BaseException:
            if new and not any((folder / name).exists() for name in (INDEX, FINISHED)):
                for name in (HOLDER, LOCK):
                    (folder / name).unlink(missing_ok=True)
                with suppress(OSError):  # not empty
                    folder.rmdir()
            raise


def _is_staged(path: Path) -> bool:
    return staged_name(path) in STAGED


def leftovers(folder: Path) -> list[Path]:
    """What builds left in a folder that were killed, in the order to remove it.

    That is every temporary file, the arrays that a temporary index.json describes, and those that
    index.json has replaced.
    """
    staged = [path for path in sorted(folder.iterdir()) if _is_staged(path)]
    current = _read(folder / INDEX)
    begun = [_read(path) for path in staged if staged_name(path) == INDEX]
    found = [
        path
        for about in (current.get("replaces"), *begun)
        if isinstance(about, dict) and about.get("generation") != current.get("generation")
        for path in _arrays(folder, about)
    ]
    return [*dict.fromkeys(found), *staged]  # a digest goes after the file that it is of


def remove_leftovers(folder: Path) -> None:
    with user_input(f"cannot write to {folder}"):
        for path in leftovers(folder):
            path.unlink()


def _read(path: Path) -> dict[str, Any]:
    """An index.json, final or not; nothing if it is not whole."""
    if not path.is_file():  # a FIFO would block
        return {}
    try:
        about = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return about if isinstance(about, dict) else {}


def _arrays(folder: Path, about: dict[str, Any]) -> list[Path]:
    """The arrays of a generation that are there with the digests that were noted."""
    generation, digests = about.get("generation"), about.get("digests")
    if not isinstance(generation, int) or not isinstance(digests, dict):
        return []
    paths = {array_path(folder, kind, generation): digests.get(kind) for kind in ARRAYS}
    return [
        path
        for path, known in paths.items()
        if path.is_file() and not path.is_symlink() and digest(path) == known
    ]


def write(
    folder: Path,
    about: dict[str, Any],
    arrays: Mapping[str, np.ndarray | Callable[[Path], None]],
    before: dict[str, Any] | None,
) -> None:
    """Write the next generation of a locked folder, and remove `before`, the last one.

    `arrays` are by kind, a matrix or what writes a file; `before` has a generation and digests.
    """
    staging = {name: staging_path(folder / name) for name in STAGED}
    staged = {kind: staging[f"{kind}{ARRAYS[kind]}"] for kind in arrays}
    try:
        with user_input(f"cannot write to {folder}", remedy=MAKE_ROOM):
            for kind, array in arrays.items():
                _write_array(staged[kind], array)
            digests = {kind: digest(path) for kind, path in staged.items()}
            generation = _free_generation(folder, 1 if before is None else before["generation"] + 1)
            about = {**about, "generation": generation, "digests": digests, "replaces": before}
            about["digest"] = own_digest(about)
            staging[INDEX].write_bytes(json_bytes(about))
            sync(staging[INDEX])  # the arrays are known by it from now on
            for kind, path in staged.items():
                publish(path, array_path(folder, kind, generation))
            publish(staging[INDEX], folder / INDEX)
    finally:
        remove_leftovers(folder)


def _write_array(path: Path, array: np.ndarray | Callable[[Path], None]) -> None:
    if not isinstance(array, np.ndarray):
        array(path)
        return
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(array.data)  # as np.save, whose error does not tell why the disk refuses


def _free_generation(folder: Path, first: int) -> int:
    """The first generation from `first` on of which no file exists."""
    for generation in itertools.count(first):
        if not any(os.path.lexists(array_path(folder, kind, generation)) for kind in ARRAYS):
            return generation
    raise AssertionError


class Content(NamedTuple):
    """What the index holds of a document."""

    vectors: np.ndarray  # (P, M) float32
    spans: np.ndarray  # (P, 2) first character, end
    tokens: int


class FinishedDocuments:
    """The documents that builds have read which did not come to their end, by their digests.

    `key` stands for the model and all options that vectors depend on; lines of another key, damaged
    lines and one that a kill has torn are not used.
    """

    def __init__(self, folder: Path, key: str, size: int) -> None:
        self.path = folder / FINISHED
        self.key = key
        self.known: dict[str, Content] = {}
        if not os.path.lexists(self.path):
            return
        size_of(self.path)
        if self.path.is_symlink():
            raise self._not_ours()
        whole, begin = True, json.dumps({"kind": FINISHED_KIND})[:-1].encode()
        with user_input(f"cannot read {self.path}"), self.path.open("rb") as lines:
            for line in lines:
                whole = line.endswith(b"\n")
                if not (line.startswith(begin) or begin.startswith(line.strip())):
                    raise self._not_ours()
                if (found := _content(line, key, size)) is not None:
                    self.known[found[0]] = found[1]
        if not whole:
            with self._writing() as file:
                file.write(b"\n")

    def _not_ours(self) -> UserError:
        return UserError(
            f"{self.path} must hold the documents that an unfinished build has read: got something "
            "else, which is left alone. Move it, or name another folder with --out."
        )

    def add(self, document: str, content: Content) -> None:
        record = {
            "kind": FINISHED_KIND,
            "key": self.key,
            "document": document,
            "tokens": content.tokens,
            "spans": content.spans.tolist(),
            "vectors": base64.b64encode(content.vectors.astype("<f4").tobytes()).decode(),
        }
        line = json.dumps({**record, "digest": own_digest(record)})
        with self._writing() as file:
            file.write(f"{line}\n".encode())
        self.known[document] = content

    @contextmanager
    def _writing(self) -> Iterator[IO[bytes]]:
        with (
            user_input(f"cannot write {self.path}", remedy=MAKE_ROOM),
            self.path.open("ab") as file,
        ):
            yield file

    def remove(self) -> None:
        """All of them are in the index now."""
        with user_input(f"cannot remove {self.path}"):
            self.path.unlink(missing_ok=True)


def _content(line: bytes, key: str, size: int) -> tuple[str, Content] | None:
    """A document and its content; None if the line is damaged or of another key."""
    try:
        record = json.loads(line)
        if record["digest"] != own_digest(record) or record["key"] != key:
            return None
        vectors = np.frombuffer(base64.b64decode(record["vectors"]), "<f4").reshape(-1, size)
    except (ValueError, KeyError, RecursionError):
        return None
    spans = np.array(record["spans"], dtype=np.int64).reshape(-1, 2)
    return record["document"], Content(vectors.astype(np.float32), spans, record["tokens"])
