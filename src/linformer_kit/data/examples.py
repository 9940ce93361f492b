"""Records become examples: rows of token ids of at most `max_length`.

mlm, clm      documents framed as <s> ... </s>; packed: one long stream cut into rows, or padded:
              each document cut into rows of its own. A last row of one token is left out: it has
              nothing to predict.
classify      one row a document, cut at max_length; or a row of features
translate     a row of the source and one of the target, each cut at max_length

What is in no row is counted.

Texts go to the tokenizer in batches of about a megabyte: enough to keep its threads busy, little
enough to forget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError, user_input
from .counts import Counts, unread
from .features import features_of
from .tokenizer import texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transformers import PreTrainedTokenizerFast

    from ..config.schema import Task
    from .records import Record

__all__ = ["Counts", "Examples", "Row", "unread"]

Row = dict[str, Any]
BATCH_BYTES = 1_000_000


@dataclass
class Examples:
    """Makes the rows of one part. `width` is the size of the features, once it is known."""

    task: Task
    max_length: int
    tokenizer: PreTrainedTokenizerFast | None = None
    pack: bool = True
    labels: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    width: int | None = None

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
            with user_input(f"cannot tokenize the texts from {batch[0]['place']} on"):
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

    @cached_property
    def _special(self) -> tuple[int | None, int | None, int | None]:
        """The ids of begin, end and unknown; None where the tokenizer has none."""
        made = self.tokenizer
        if made is None:
            return None, None, None
        return made.bos_token_id, made.eos_token_id, made.unk_token_id

    def _framed(self, encoding: Any) -> tuple[np.ndarray, np.ndarray]:
        """Ids as <s> ... </s>, and where words begin."""
        first, last, _ = self._special
        ids = [token for token in (first, *encoding.ids, last) if token is not None]
        words = np.asarray([-1 if w is None else w for w in encoding.word_ids], dtype=np.int64)
        starts = np.ones(len(ids), dtype=bool)
        at = 0 if first is None else 1
        starts[at + 1 : at + len(words)] = words[1:] != words[:-1]
        return self._counted(ids), starts

    def _counted(self, ids: list[int]) -> np.ndarray:
        made = np.asarray(ids)
        unknown = self._special[2]
        self.counts.tokens += len(made)
        if unknown is not None:
            self.counts.unknown += int(np.count_nonzero(made == unknown))
        return made

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
        else:
            self.counts.cut_tokens += len(rest)

    def _windows(self, records: Iterable[Record]) -> Iterator[Row]:
        for _, (encoding,) in self._encoded(records):
            ids, starts = self._framed(encoding)
            for start in range(0, len(ids), self.max_length):
                end = start + self.max_length
                if len(ids) - start > 1:
                    yield self._row(ids[start:end], starts[start:end])
                else:
                    self.counts.cut_tokens += 1
                    self.counts.cut_rows += 1

    def _row(self, ids: np.ndarray, starts: np.ndarray) -> Row:
        row: Row = {"input_ids": ids, "length": len(ids)}
        if self.task == "mlm":
            row["word_starts"] = starts
        return row

    def _documents(self, records: Iterable[Record]) -> Iterator[Row]:
        places = {name: place for place, name in enumerate(self.labels)}
        for record, (encoding,) in self._encoded(records):
            (ids,) = self._cut(self._framed(encoding)[0])
            label = self._label(places, record)
            yield {"input_ids": ids, "length": len(ids), "labels": label}

    def _pairs(self, records: Iterable[Record]) -> Iterator[Row]:
        last = self._special[1]
        assert last is not None  # `load` has seen to it
        for record, (source, target) in self._encoded(records):
            left, right = self._cut(
                self._counted([*source.ids, last]), self._counted([*target.ids, last])
            )
            yield {
                "input_ids": left,
                "labels": right,
                "length": max(len(left), len(right)),
                "reference": record["target"],
            }

    def _features(self, records: Iterable[Record]) -> Iterator[Row]:
        places = {name: place for place, name in enumerate(self.labels)}
        for record in records:
            try:
                values = features_of(record["features"])
            except ValueError as error:
                raise UserError(
                    f"{record['place']}: features {error}. Correct the record, or remove it."
                ) from error
            if self.width is not None and values.shape[1] != self.width:
                raise UserError(
                    f"{record['place']}: features must have one size in all rows of all parts: "
                    f"got {values.shape[1]} after {self.width}."
                )
            self.width = values.shape[1]
            self.counts.documents += 1
            self.counts.tokens += len(values)
            (values,) = self._cut(values)
            yield {
                "features": values.reshape(-1),
                "length": len(values),
                "width": self.width,
                "labels": self._label(places, record),
            }

    def _cut(self, *sides: np.ndarray) -> list[np.ndarray]:
        """The sides of one row, each of at most `max_length`."""
        kept = [side[: self.max_length] for side in sides]
        cut = sum(map(len, sides)) - sum(map(len, kept))
        self.counts.cut_rows += cut > 0
        self.counts.cut_tokens += cut
        last = self._special[1]
        for place, side in enumerate(sides):
            if last is not None and len(kept[place]) < len(side):
                kept[place] = np.append(kept[place][:-1], last)  # it still has an end
        return kept

    @staticmethod
    def _label(places: dict[str, int], record: Record) -> int:
        try:
            return places[record["label"]]
        except KeyError:
            raise UserError(
                f"{record['place']}: the label {record['label']!r:.60} is not among those of the "
                f"training part: {_some(list(places))}. Add it there, or remove the record."
            ) from None


def _some(names: list[str]) -> str:
    shown = ", ".join(f"{name!r:.60}" for name in names[:12])
    return shown + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")
