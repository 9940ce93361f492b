"""A corpus: where records come from (files, built in, the hub) and which part each belongs to.

A record is put into training, validation or test by a hash of its content and the seed: the same
on every machine, whatever the order, and two equal records never end up on both sides.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..artifact import digest
from ..config.schema import Sides
from ..errors import UserError, shown, user_input
from . import builtin, files, hub_dataset, tables
from .spans import MAX_LABEL, Spans, from_words, read_spans
from .tables import TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from ..config.schema import DataSection, RunConfig, Source, Task
    from .files import Limits
    from .tables import Placed, Record

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
SIDES = {"source": "source", "target": "target"}


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
        if self.task == "embed" and self.data.anchor is not None:
            given = {"text": self.data.anchor, "positive": self.data.positive}
            return given | ({"negative": self.data.negative} if self.data.negative else {})
        if self.task == "tag":
            if self.data.words is not None:
                return {"words": self.data.words, "tags": self.data.tags}
            return {"text": self.data.text, "spans": self.data.spans}
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
        """Bytes of the files to read for all parts, compressed or not. Progress is measured by it.

        Where validation and test are cut from `data.train`, it is read once for each.
        """
        return sum(
            files.size_of(path) for part in PARTS for path in self._files(self._source(part))
        )

    def part(self, part: Part, *, tell: Callable[[int], None] | None = None) -> Iterator[Record]:
        """The records of one part. Each holds its `place` too, for errors about it."""
        limits = files.Limits(document_mb=self.data.max_document_mb)
        if tell is not None:
            limits.tell = tell
        if part == "train" or self._share(part) > 0:
            yield from (record for assigned, record in self._assigned(limits) if assigned == part)
        elif (source := getattr(self.data, part)) is not None:
            yield from self._read(source, limits)

    def tally(self) -> dict[Part, int]:
        """How many records of `data.train` that are not empty go to each part."""
        counts: dict[Part, int] = dict.fromkeys(PARTS, 0)
        for part, record in self._assigned(files.Limits(self.data.max_document_mb)):
            texts = [record[name] for name in TEXTS if name in record]
            counts[part] += all(text.strip() for text in texts)
        return counts

    def _source(self, part: Part) -> Source | None:
        """What a part is read from."""
        if self._share(part) > 0:
            return self.data.train
        source: Source | None = getattr(self.data, part)
        return source

    def _share(self, part: Part) -> float:
        """How much of `data.train` is put aside as this part."""
        if part == "train" or getattr(self.data, part) is not None:
            return 0.0
        return float(getattr(self.data, f"{part}_share"))

    def _assigned(self, limits: Limits) -> Iterator[tuple[Part, Record]]:
        """The records of `data.train`, each with the part that it goes to."""
        validation, test = self._share("validation"), self._share("test")
        for record in self._read(self.data.train, limits):
            point = self._point(record) if validation + test else 1.0
            if point < validation:
                yield "validation", record
            else:
                yield "test" if point < validation + test else "train", record

    def _point(self, record: Record) -> float:
        """A number from 0 to 1 that follows from the seed and the content."""
        # Without the label or the translation: what the model is shown must not be in two parts.
        content = next(record[name] for name in ("text", "source", "features") if name in record)
        try:
            hashed = f"{self.seed}\0{content}".encode()
        except Exception:  # features may hold anything until they become numbers
            with user_input(f"cannot read {record['place']}"):
                raise
        return int(digest(hashed, size=8), 16) / 2**64

    def left_out(self, part: Part) -> list[Path]:
        """Files of the folders of a part, other than a share of `data.train`, that are not read."""
        names = self._names(getattr(self.data, part))
        return [path for name in names for path in files.left_out(name)]

    def _files(self, source: Source | None) -> list[Path]:
        return [path for name in self._names(source) for path in files.find(name)]

    def _names(self, source: Source | None) -> list[str]:
        """Files, folders and globs, without what is built in or on the hub."""
        if source is None or builtin.find(source) is not None:
            return []
        if isinstance(source, Sides):
            return [source.source, source.target]
        names = [source] if isinstance(source, str) else source
        return [name for name in names if not name.startswith(hub_dataset.PREFIX)]

    def _identity(self, source: Source | None) -> Any:
        if source is None:
            return None
        if (corpus := builtin.find(source)) is not None:
            return [corpus.name, corpus.version(), self.data.options]
        found = []
        for path in self._files(source):
            with user_input(f"cannot read {path}"):
                stat = path.stat()
                found.append([str(path.resolve()), stat.st_size, stat.st_mtime_ns])
        others = [str(path) for name in self._names(source) for path in files.left_out(name)]
        given = source.model_dump() if isinstance(source, Sides) else source
        return [given, found, others] if others else [given, found]

    def _read(self, source: Source, limits: Limits) -> Iterator[Record]:
        corpus = builtin.find(source)
        if corpus is not None:
            self._check_builtin(corpus)
            made = corpus.records(self.data.options, self.seed)
            for number, record in enumerate(made, start=1):
                yield {**record, "place": f"record {number} of {corpus.name}"}
            return
        if self.data.options:
            raise UserError(
                "data.options belong to the built-in corpora letters, listops, needle and "
                "phrases-en-de."
            )
        columns = SIDES if isinstance(source, Sides) else self.columns
        if self.has_features and "features" not in columns:
            raise UserError(
                f"data.train holds features, so {source} must hold them too. Name their column in "
                "data.features."
            )
        named = _tagged if self.task == "tag" else _named
        for place, row in self._placed(source, list(columns.values()), limits):
            yield named(row, place, columns)

    def _check_builtin(self, corpus: builtin.BuiltinCorpus) -> None:
        if self.task not in corpus.tasks:
            raise UserError(
                f"the built-in corpus {corpus.name!r} serves the task "
                f"{' or '.join(corpus.tasks)}: got task {self.task!r}."
            )
        if self.task == "embed" and corpus.pairs != (self.data.anchor is not None):
            rule = "set data.anchor: text" if corpus.pairs else "leave out data.anchor"
            held = "pairs" if corpus.pairs else "single texts"
            raise UserError(
                f"the built-in corpus {corpus.name!r} holds {held}: {rule}. Got data.anchor: "
                f"{self.data.anchor}."
            )
        if corpus.features != self.has_features:
            kinds = ("features", "texts") if corpus.features else ("texts", "features")
            raise UserError(
                f"the built-in corpus {corpus.name!r} holds {kinds[0]}: got {kinds[1]} in "
                "data.train or data.features. All parts must hold the same."
            )

    def _placed(self, source: Source, columns: list[str], limits: Limits) -> Iterator[Placed]:
        if isinstance(source, Sides):
            yield from _aligned(source, limits)
            return
        for name in [source] if isinstance(source, str) else source:
            if name.startswith(hub_dataset.PREFIX):
                yield from hub_dataset.read(name, columns)
                continue
            for path in files.find(name):
                if self.task != "tag" and files.format_of(path, self.data.format) == "conll":
                    raise UserError(
                        f"{path} has CoNLL columns, which belong to the task 'tag': got task "
                        f"{self.task!r}. Name another format with data.format."
                    )
                with user_input(f"cannot read {path}"):  # whatever a file can hold
                    yield from tables.read(
                        path,
                        columns,
                        format=self.data.format,
                        documents=self.data.documents,
                        limits=limits,
                    )


def _aligned(sides: Sides, limits: Limits) -> Iterator[Placed]:
    left, right = (
        itertools.chain.from_iterable(files.lines(path, limits) for path in files.find(side))
        for side in (sides.source, sides.target)
    )
    for number, (source, target) in enumerate(itertools.zip_longest(left, right)):
        if source is None or target is None:
            longer = sides.source if target is None else sides.target
            raise UserError(
                f"{sides.source} and {sides.target} must have the same number of lines: "
                f"{longer} has more than {number}."
            )
        place = f"line {number + 1} of {sides.source} and {sides.target}"
        yield place, {"source": source.strip(), "target": target.strip()}


def _named(row: Record, place: str, columns: Mapping[str, str]) -> Record:
    """A record by the names of the task instead of the columns', with its place."""
    record: Record = {"place": place}
    for name, column in columns.items():
        value = row[column]
        if name == "label":
            value = _label(value, f"{place}: the label in {column!r}")
        if name != "features":  # these are checked when they become numbers
            _check_text(value, f"{place}: the column {column!r}")
        record[name] = value
    return record


def _tagged(row: Record, place: str, columns: Mapping[str, str]) -> Record:
    """A text and its spans, of which a CoNLL file has checked its own."""
    if isinstance(row.get("spans"), Spans):
        text, spans = row["text"], row["spans"]
    elif "words" in columns:
        text, spans = from_words(row[columns["words"]], row[columns["tags"]], place)
    else:
        text = row[columns["text"]]
        _check_text(text, f"{place}: the column {columns['text']!r}")
        spans = read_spans(row[columns["spans"]], text, place)
    _check_text(text, f"{place}: the text")
    return {"place": place, "text": text, "spans": spans}


def _check_text(value: Any, what: str) -> None:
    if not isinstance(value, str):
        got = "null" if value is None else type(value).__name__
        raise UserError(f"{what} must hold text: got {got}.")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(
                f"{what} is not text: it holds the lone surrogate "
                f"\\u{ord(value[error.start]):04x}. Remove it, or write the character it is half "
                "of."
            ) from error


def _label(value: Any, what: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        got = "null" if value is None else shown(value)
        raise UserError(f"{what} must be text or a whole number: got {got}. Write it as one.")
    label = str(value)
    if not label.strip():
        raise UserError(f"{what} must not be empty: got {shown(value)}. Fill it in, or remove it.")
    if len(label) > MAX_LABEL:
        raise UserError(
            f"{what} must have at most {MAX_LABEL} characters: got {len(label):,}. Is data.label "
            "the right column?"
        )
    return label
