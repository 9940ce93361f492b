"""Records become examples: rows of token ids of at most `max_length`.

mlm, clm      documents framed as <s> ... </s>; packed: one long stream cut into rows, or padded:
              each document cut into rows of its own
classify      one row a document, cut at max_length; or a row of features
translate     a row of the source and one of the target

Texts go to the tokenizer in batches of about a megabyte: enough to keep its threads busy, little
enough to forget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from .tokenizer import texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transformers import PreTrainedTokenizerFast

    from ..config.schema import Task
    from .records import Record

Row = dict[str, Any]
BATCH_BYTES = 1_000_000


@dataclass
class Counts:
    """What has gone by."""

    documents: int = 0
    rows: int = 0
    tokens: int = 0
    bytes: int = 0
    words: int = 0
    empty: int = 0
    truncated: int = 0


@dataclass
class Examples:
    """Makes the rows of one part."""

    task: Task
    max_length: int
    tokenizer: PreTrainedTokenizerFast | None = None
    pack: bool = True
    labels: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def rows(self, records: Iterable[Record]) -> Iterator[Row]:
        """The rows of these records, in order."""
        if self.tokenizer is None:
            made = self._features(records)
        elif self.task in ("mlm", "clm"):
            made = self._packed(records) if self.pack else self._windows(records)
        elif self.task == "classify":
            made = self._documents(records)
        else:
            made = self._pairs(records)
        for row in made:
            self.counts.rows += 1
            yield row

    def _encoded(self, records: Iterable[Record]) -> Iterator[tuple[Record, list[Any]]]:
        """Each record with the encodings of its texts."""
        assert self.tokenizer is not None
        backend = self.tokenizer.backend_tokenizer
        for batch in self._batches(records):
            texts = [text for record in batch for text in texts_of(record)]
            encodings = iter(backend.encode_batch(texts, add_special_tokens=False))
            for record in batch:
                yield record, [next(encodings) for _ in texts_of(record)]

    def _batches(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        batch: list[Record] = []
        size = 0
        for record in records:
            texts = list(texts_of(record))
            if not all(text.strip() for text in texts):
                self.counts.empty += 1
                continue
            batch.append(record)
            length = sum(len(text.encode("utf-8")) for text in texts)
            self.counts.documents += 1
            self.counts.bytes += length
            self.counts.words += sum(len(text.split()) for text in texts)
            size += length
            if size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _framed(self, encoding: Any) -> tuple[np.ndarray, np.ndarray]:
        """Ids as <s> ... </s>, and where words begin."""
        assert self.tokenizer is not None
        first, last = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        ids = [token for token in (first, *encoding.ids, last) if token is not None]
        words = np.asarray([-1 if w is None else w for w in encoding.word_ids], dtype=np.int64)
        starts = np.ones(len(ids), dtype=bool)
        at = 0 if first is None else 1
        starts[at + 1 : at + len(words)] = words[1:] != words[:-1]
        self.counts.tokens += len(ids)
        return np.asarray(ids), starts

    def _packed(self, records: Iterable[Record]) -> Iterator[Row]:
        n = self.max_length
        ids_left, starts_left = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=bool)]
        waiting = 0
        for _, (encoding,) in self._encoded(records):
            ids, starts = self._framed(encoding)
            ids_left.append(ids)
            starts_left.append(starts)
            waiting += len(ids)
            if waiting < n:
                continue
            ids, starts = np.concatenate(ids_left), np.concatenate(starts_left)
            whole = len(ids) // n * n
            for start in range(0, whole, n):
                yield self._row(ids[start : start + n], starts[start : start + n])
            ids_left, starts_left = [ids[whole:]], [starts[whole:]]
            waiting = len(ids) - whole
        rest = np.concatenate(ids_left)
        if len(rest) > 1:  # less than a row: padded when it is used
            yield self._row(rest, np.concatenate(starts_left))

    def _windows(self, records: Iterable[Record]) -> Iterator[Row]:
        for _, (encoding,) in self._encoded(records):
            ids, starts = self._framed(encoding)
            for start in range(0, len(ids), self.max_length):
                end = start + self.max_length
                if len(ids) - start > 1:
                    yield self._row(ids[start:end], starts[start:end])

    def _row(self, ids: np.ndarray, starts: np.ndarray) -> Row:
        row: Row = {"input_ids": ids, "length": len(ids)}
        if self.task == "mlm":
            row["word_starts"] = starts
        return row

    def _documents(self, records: Iterable[Record]) -> Iterator[Row]:
        places = {name: place for place, name in enumerate(self.labels)}
        for record, (encoding,) in self._encoded(records):
            ids = self._cut(*self._framed(encoding)[:1])
            label = self._label(places, record)
            yield {"input_ids": ids, "length": len(ids), "labels": label}

    def _pairs(self, records: Iterable[Record]) -> Iterator[Row]:
        assert self.tokenizer is not None
        last = self.tokenizer.eos_token_id
        for record, (source, target) in self._encoded(records):
            left = self._cut(np.asarray([*source.ids, last]))
            right = self._cut(np.asarray([*target.ids, last]))
            self.counts.tokens += len(left) + len(right)
            yield {
                "input_ids": left,
                "labels": right,
                "length": max(len(left), len(right)),
                "reference": record["target"],
            }

    def _features(self, records: Iterable[Record]) -> Iterator[Row]:
        places = {name: place for place, name in enumerate(self.labels)}
        width: int | None = None
        for record in records:
            try:
                values = np.asarray(record["features"], dtype=np.float32)
            except (ValueError, TypeError) as error:
                raise UserError(
                    f"features must be lists of numbers of one size: {error}."
                ) from error
            values = values[:, None] if values.ndim == 1 else values
            if values.ndim != 2 or (width is not None and values.shape[1] != width):
                raise UserError(
                    "features must have the shape (positions, size) with one size: got "
                    f"{values.shape}{'' if width is None else f' after size {width}'}."
                )
            width = values.shape[1]
            values = self._cut(values)
            self.counts.documents += 1
            self.counts.tokens += len(values)
            yield {
                "features": values.reshape(-1),
                "length": len(values),
                "width": width,
                "labels": self._label(places, record),
            }

    def _cut(self, ids: np.ndarray) -> np.ndarray:
        if len(ids) <= self.max_length:
            return ids
        self.counts.truncated += 1
        kept = ids[: self.max_length].copy()
        if self.tokenizer is not None and self.tokenizer.eos_token_id is not None:
            kept[-1] = self.tokenizer.eos_token_id  # it still has an end
        return kept

    @staticmethod
    def _label(places: dict[str, int], record: Record) -> int:
        try:
            return places[record["label"]]
        except KeyError:
            raise UserError(
                f"the label {record['label']!r} is not among those of the training part: "
                f"{', '.join(sorted(places)[:12])}."
            ) from None
