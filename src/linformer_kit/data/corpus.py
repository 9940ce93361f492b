"""A corpus: where records come from (files, built in, the hub) and which part each belongs to.

A record is put into training, validation or test by a hash of its content and the seed: the same
on every machine, whatever the order, and two equal records never end up on both sides.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..config.schema import Sides
from ..errors import UserError
from . import builtin, files, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ..config.schema import DataSection, RunConfig, Source, Task
    from .files import Limits
    from .records import Record

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
HUB = "hub:"


@dataclass(frozen=True)
class Corpus:
    """Records by part, read anew each time they are asked for."""

    task: Task
    data: DataSection
    seed: int

    @classmethod
    def of(cls, config: RunConfig) -> Corpus:
        return cls(task=config.task, data=config.data, seed=config.seed)

    @property
    def columns(self) -> dict[str, str]:
        """What each record holds, and the column it comes from."""
        if self.task == "translate":
            return {"source": self.data.source, "target": self.data.target}
        if self.task != "classify":
            return {"text": self.data.text}
        if self.data.features is not None:
            return {"features": self.data.features, "label": self.data.label}
        return {"text": self.data.text, "label": self.data.label}

    @property
    def has_features(self) -> bool:
        """Sequences of numbers instead of text."""
        corpus = builtin.find(self.data.train)
        return self.data.features is not None or (corpus is not None and corpus.features)

    def identity(self) -> dict[str, Any]:
        """What the records depend on: it changes when a file does."""
        return {part: self._identity(getattr(self.data, part)) for part in PARTS}

    def size(self) -> int:
        """Bytes of the files, packed or not: what progress is measured against."""
        return sum(path.stat().st_size for part in PARTS for path in self.files(part))

    def files(self, part: Part) -> list[Path]:
        """The files of a part."""
        return self._files(getattr(self.data, part))

    def part(self, part: Part, *, tell: Callable[[int], None] | None = None) -> Iterator[Record]:
        """The records of one part."""
        limits = files.Limits(document_mb=self.data.max_document_mb)
        if tell is not None:
            limits.tell = tell
        own = getattr(self.data, part)
        if part == "train":
            for record in self._read(self.data.train, limits):
                if self._part_of(record) == "train":
                    yield record
        elif own is not None:
            yield from self._read(own, limits)
        elif self._share(part) > 0:
            for record in self._read(self.data.train, limits):
                if self._part_of(record) == part:
                    yield record

    def _share(self, part: Part) -> float:
        """How much of `data.train` is put aside as this part."""
        if getattr(self.data, part) is not None:
            return 0.0
        return float(getattr(self.data, f"{part}_share"))

    def _part_of(self, record: Record) -> Part:
        validation, test = self._share("validation"), self._share("test")
        if validation + test == 0.0:
            return "train"
        # Without the label or the translation: what the model is shown must not be in two parts.
        content = next(record[name] for name in ("text", "source", "features") if name in record)
        digest = hashlib.blake2b(f"{self.seed}\0{content}".encode(), digest_size=8).digest()
        point = int.from_bytes(digest, "big") / 2**64
        if point < validation:
            return "validation"
        return "test" if point < validation + test else "train"

    def _files(self, source: Source | None) -> list[Path]:
        if source is None or builtin.find(source) is not None:
            return []
        if isinstance(source, Sides):
            return [*files.find(source.source), *files.find(source.target)]
        names = [source] if isinstance(source, str) else source
        return [path for name in names if not name.startswith(HUB) for path in files.find(name)]

    def _identity(self, source: Source | None) -> Any:
        if source is None:
            return None
        if (corpus := builtin.find(source)) is not None:
            return [corpus.name, corpus.version(), self.data.options]
        found = []
        for path in self._files(source):
            stat = path.stat()
            found.append([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
        return [source.model_dump() if isinstance(source, Sides) else source, found]

    def _read(self, source: Source, limits: Limits) -> Iterator[Record]:
        corpus = builtin.find(source)
        if corpus is not None:
            if self.task not in corpus.tasks:
                raise UserError(
                    f"the built-in corpus {corpus.name!r} serves the task "
                    f"{' or '.join(corpus.tasks)}: got task {self.task!r}."
                )
            yield from corpus.records(self.data.options, self.seed)
            return
        if self.data.options:
            raise UserError(
                "data.options belong to the built-in corpora listops and phrases-en-de."
            )
        if isinstance(source, Sides):
            yield from self._aligned(source, limits)
            return
        names = [source] if isinstance(source, str) else source
        columns = self.columns
        for name in names:
            if name.startswith(HUB):
                rows = _from_hub(name.removeprefix(HUB), list(columns.values()))
                yield from (self._named(row, name) for row in rows)
                continue
            for path in files.find(name):
                wanted = list(columns.values())
                rows = records.read(
                    path,
                    wanted,
                    format=self.data.format,
                    documents=self.data.documents,
                    limits=limits,
                )
                yield from (self._named(row, path) for row in rows)

    def _aligned(self, sides: Sides, limits: Limits) -> Iterator[Record]:
        quiet = files.Limits(document_mb=limits.document_mb, tell=limits.tell)
        left = itertools.chain.from_iterable(
            files.lines(path, limits) for path in files.find(sides.source)
        )
        right = itertools.chain.from_iterable(
            files.lines(path, quiet) for path in files.find(sides.target)
        )
        for count, (source, target) in enumerate(itertools.zip_longest(left, right)):
            if source is None or target is None:
                longer = sides.source if target is None else sides.target
                raise UserError(
                    f"{sides.source} and {sides.target} must have the same number of lines: "
                    f"{longer} goes on after line {count}."
                )
            yield {"source": source.strip(), "target": target.strip()}

    def _named(self, row: Record, where: object) -> Record:
        """By the names of the task instead of the columns'."""
        record = {name: row[column] for name, column in self.columns.items()}
        for name, value in record.items():
            if name == "label" and isinstance(value, (int, str)) and not isinstance(value, bool):
                record[name] = str(value)
            elif name == "features":
                if not isinstance(value, list) or not value:
                    raise UserError(f"{where}: {self.columns[name]!r} must be a list of numbers.")
            elif not isinstance(value, str):
                raise UserError(
                    f"{where}: the column {self.columns[name]!r} must hold text: got "
                    f"{type(value).__name__}."
                )
        return record


def _from_hub(name: str, columns: list[str]) -> Iterator[Record]:
    """`owner/name`, `owner/name:config` or either with `@split`; streamed."""
    import datasets

    name, _, split = name.partition("@")
    name, _, config = name.partition(":")
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        for row in rows:
            for column in columns:
                if column not in row:
                    raise UserError(
                        f"the data set {name} has no column {column!r}: it has {', '.join(row)}."
                    )
            yield row
    except UserError:
        raise
    except Exception as error:  # whatever a network, a hub and a foreign data set can raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"cannot load the data set {name!r} from the hub: {reason}") from error
