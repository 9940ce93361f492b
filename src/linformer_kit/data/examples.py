"""Records become examples: rows of token ids of at most `max_length`.

mlm, clm      documents framed as <s> ... </s>; packed: one long stream cut into rows, or padded:
              each document cut into rows of its own. A last row of one token is left out: it has
              nothing to predict.
classify      one row a document, or a row of features
tag           one row a document, with a label for each token
embed         a text and its positive (and negative); a document alone is cut into two parts, and
              a longer one into several such pairs
translate     a row of the source and one of the target

What happens to a document that is longer than max_length: `on_overflow`. What is in no row is
counted.

Texts go to the tokenizer in batches of about a megabyte: enough to keep its threads busy, little
enough to forget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config.on_overflow import DEFAULTS
from ..errors import UserError, cut, listed, user_input
from ..models.text_input import Frame
from .counts import Counts
from .features import features_of
from .iob import spans_of, types_of
from .masking import IGNORED
from .overflow import Overflow
from .tagging import cores, label_tokens, token_ranges, word_starts
from .tokenizer import encode_whole, frame_of, texts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from transformers import PreTrainedTokenizerFast

    from ..config.on_overflow import OnOverflow
    from ..config.schema import Task
    from .tables import Record

__all__ = ["Counts", "Examples", "Row"]

Row = dict[str, Any]
BATCH_BYTES = 1_000_000
LEAST_TO_COMPARE = 8  # tokens of a document of which two parts are compared


@dataclass
class Examples:
    """Makes the rows of one part. `width` is the size of the features, once it is known."""

    task: Task
    max_length: int
    tokenizer: PreTrainedTokenizerFast | None = None
    on_overflow: OnOverflow | None = None
    instead: str = "truncate or chunk"  # what may be used in place of error
    overlap: float = 0.0
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
        elif self.task == "embed":
            made = self._to_compare(records)
        elif self.task == "tag":
            made = self._tagged(records)
        else:
            made = self._pairs(records)
        for row in made:
            self.counts.rows += 1
            yield row

    def _encoded(self, records: Iterable[Record]) -> Iterator[tuple[Record, list[Any]]]:
        """Each record with the encodings of its texts."""
        assert self.tokenizer is not None
        for batch in self._batches(records):
            texts = [text for record in batch for text in texts_of(record)]
            with user_input(f"cannot tokenize the texts from {batch[0]['place']} on"):
                encodings = iter(encode_whole(self.tokenizer, texts))
            for record in batch:
                found = [next(encodings) for _ in texts_of(record)]
                for encoding in found:
                    self._count_unknown(encoding.ids)
                yield record, found

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
    def _frame(self) -> Frame:
        return Frame((), ()) if self.tokenizer is None else frame_of(self.tokenizer, self.task)

    @cached_property
    def _policy(self) -> OnOverflow:
        return self.on_overflow or DEFAULTS[self.task]

    @cached_property
    def _overflow(self) -> Overflow:
        return Overflow(
            self._policy,
            self.max_length,
            self._frame.size,
            self.overlap,
            instead=self.instead,
        )

    def _pieces(self, record: Record, *lengths: int) -> list[list[range]]:
        """What is in a row of a record's sides, which have these lengths without their frames."""
        overflow = self._overflow
        self._count(*lengths)
        try:
            pieces = [overflow.pieces(length) for length in lengths]
        except UserError as error:
            raise UserError(f"{record['place']}: {error}") from None
        cut = sum(
            overflow.reading(length, read).unread
            for length, read in zip(lengths, pieces, strict=True)
        )
        self.counts.cut_rows += cut > 0
        self.counts.cut_tokens += cut
        self.counts.chunked += max(map(len, pieces)) > 1
        return pieces

    def _count(self, *lengths: int) -> None:
        sizes = [length + self._frame.size for length in lengths]
        self.counts.tokens += sum(sizes)
        self.counts.longest = max(self.counts.longest, *sizes)
        self.counts.longer += max(sizes) > self.max_length

    def _framed(self, record: Record, encoding: Any) -> tuple[np.ndarray, np.ndarray]:
        """Ids as <s> ... </s>, and where words begin; of a stream, whose rows are cut elsewhere."""
        given = encoding.ids
        end = len(given)
        if self._policy == "chunk":
            self._count(end)
        else:
            ((read,),) = self._pieces(record, end)
            end = read.stop
        ids = self._ids(given[:end])
        words = encoding.word_ids[:end]
        word = np.asarray([-1 if w is None else w for w in words], dtype=np.int64)
        starts = np.ones(len(ids), dtype=bool)
        at = len(self._frame.before)
        starts[at + 1 : at + len(word)] = word[1:] != word[:-1]
        return ids, starts

    def _ids(self, ids: list[int]) -> np.ndarray:
        """A row of ids in its frame, of which `max_length` may leave only the end."""
        made = np.asarray(self._frame(ids))
        return made[-self.max_length :] if not ids else made

    def _count_unknown(self, ids: list[int]) -> None:
        unknown = None if self.tokenizer is None else self.tokenizer.unk_token_id
        if unknown is not None:
            self.counts.unknown += ids.count(unknown)

    def _packed(self, records: Iterable[Record]) -> Iterator[Row]:
        n = self.max_length
        ids_left, starts_left = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=bool)]
        waiting = 0
        for record, (encoding,) in self._encoded(records):
            ids, starts = self._framed(record, encoding)
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
        for record, (encoding,) in self._encoded(records):
            ids, starts = self._framed(record, encoding)
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
        for number, (record, (encoding,)) in enumerate(self._encoded(records)):
            given, label = encoding.ids, self._label(places, record)
            (pieces,) = self._pieces(record, len(given))
            for piece in pieces:
                ids = self._ids(given[piece.start : piece.stop])
                row = {"input_ids": ids, "length": len(ids), "labels": label}
                yield row | self._document(number)

    def _document(self, number: int) -> Row:
        """The number of the document in its rows, where those are scored together."""
        return {"document": number} if self._policy == "chunk" else {}

    def _tagged(self, records: Iterable[Record]) -> Iterator[Row]:
        types = {name: place for place, name in enumerate(types_of(self.labels))}
        before = len(self._frame.before)
        for record, (encoding,) in self._encoded(records):
            for span in record["spans"]:
                if span.label not in types:
                    raise _unknown_label(record, span.label, list(types))
            ranges = token_ranges(encoding.offsets, record["text"])
            starts = word_starts(ranges, record["text"])
            labels, lost, moved = label_tokens(ranges, starts, record["spans"], types)
            (pieces,) = self._pieces(record, len(labels))
            unread = [int(one) for one, at, _ in spans_of(labels) if at >= pieces[-1].stop]
            missed = np.array([types[name] for name in lost] + unread, dtype=np.int64)
            self.counts.spans += len(record["spans"])
            self.counts.lost_spans += len(lost)
            self.counts.unread_spans += len(unread)
            self.counts.moved_spans += moved
            every = encoding.ids  # makes a list of the whole text
            blank = ranges[:, 0] == ranges[:, 1]
            asked = np.where(blank, IGNORED, labels)
            for piece, core in zip(pieces, cores(pieces), strict=True):
                here = slice(piece.start, piece.stop)
                begun = starts[here].copy()
                begun[:1] = True  # a piece may begin inside a word, which the frame is no part of
                ids = self._ids(every[here])
                next_label = piece.stop < len(labels) and labels[piece.stop]
                yield {
                    "input_ids": ids,
                    "length": len(ids),
                    "tags": self._around(asked[here], IGNORED),
                    "word_starts": self._around(begun, 1).astype(bool),
                    "core_start": before + core.start - piece.start,
                    "core_end": before + core.stop - piece.start,
                    "missed": missed,
                    "cut_span": int(next_label and next_label % 2 == 0),  # I, not B
                }
                missed = missed[:0]  # each counts once

    def _around(self, values: np.ndarray, fill: int) -> np.ndarray:
        """Values of the tokens of a row, with `fill` for its frame."""
        before, after = (np.full(len(side), fill) for side in self._frame)
        return np.concatenate([before, values, after])

    def _to_compare(self, records: Iterable[Record]) -> Iterator[Row]:
        for record, sides in self._encoded(records):
            if len(sides) == 1:
                yield from self._halves(record, sides[0])
                continue
            pieces = self._pieces(record, *(len(side.ids) for side in sides))
            yield self._compared(
                side.ids[: read.stop] for side, (read,) in zip(sides, pieces, strict=True)
            )

    def _halves(self, record: Record, encoding: Any) -> Iterator[Row]:
        """Two parts of a document that belong together; of a long document, several such pairs."""
        room = self.max_length - self._frame.size
        ids, whole = encoding.ids, 2 * room
        if self._policy != "chunk":
            middle = len(ids) // 2
            left, right = self._pieces(record, middle, len(ids) - middle)
            ends = [left[0].stop, middle + right[0].stop]
            yield self._compared([ids[: ends[0]], ids[middle : ends[1]]])
            return
        self._count(len(ids))
        self.counts.chunked += len(ids) > whole
        for start in range(0, len(ids), whole):
            part = ids[start : start + whole]
            if len(part) < LEAST_TO_COMPARE:
                self.counts.cut_tokens += len(part)
                continue
            middle = (len(part) + 1) // 2
            yield self._compared([part[:middle], part[middle:]])

    def _compared(self, sides: Iterable[list[int]]) -> Row:
        rows = [self._ids(side) for side in sides]
        named = dict(zip(("input_ids", "positive", "negative"), rows, strict=False))
        return {**named, "length": max(map(len, rows))}

    def _pairs(self, records: Iterable[Record]) -> Iterator[Row]:
        for record, sides in self._encoded(records):
            pieces = self._pieces(record, *(len(side.ids) for side in sides))
            left, right = (
                self._ids(side.ids[: read.stop])
                for side, (read,) in zip(sides, pieces, strict=True)
            )
            yield {
                "input_ids": left,
                "labels": right,
                "length": max(len(left), len(right)),
                "reference": record["target"],
            }

    def _features(self, records: Iterable[Record]) -> Iterator[Row]:
        places = {name: place for place, name in enumerate(self.labels)}
        for number, record in enumerate(records):
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
            (pieces,) = self._pieces(record, len(values))
            label = self._label(places, record)
            for piece in pieces:
                here = values[piece.start : piece.stop]
                row = {"features": here.reshape(-1), "length": len(here), "width": self.width}
                yield row | {"labels": label} | self._document(number)

    @staticmethod
    def _label(places: dict[str, int], record: Record) -> int:
        try:
            return places[record["label"]]
        except KeyError:
            raise _unknown_label(record, record["label"], list(places)) from None


def _unknown_label(record: Record, label: str, known: list[str]) -> UserError:
    return UserError(
        f"{record['place']}: the label {cut(label)!r} is not among those of the training part: "
        f"{listed(known, 12, form=repr)}. Add it there, or remove the record."
    )
