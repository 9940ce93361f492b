"""Answers to a whole file: in batches of similar length, within bounded memory, resumable.

Rows are read until their pieces fill a pool of `POOL` batches; the pool is answered in batches
sorted by length, written in the order of the rows, and committed. So memory is bounded by a pool
and one text, and a killed job repeats one pool at most. The first pool of a process is one batch:
some answers are on the disk early.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..artifact import MANIFEST, digest
from ..data.files import BY_SUFFIX, MB, PACKED, STDIN
from ..errors import UserError, user_input
from ..machine_memory import release_freed_memory
from ..measure import quantities
from .inputs import FORMATS, Input, Row, kind_of_input
from .journal import NAME_ANOTHER, Journal, locked, partial_of
from .matrix import MatrixWriter, rows_file
from .writers import LineWriter, ParquetWriter, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..config.schema import Format, RunConfig
    from .answers import Predictor
    from .journal import Totals
    from .tasks import Question

POOL = 16  # batches that are sorted together
ROWS = 256  # for each of them at most
TOKENS = ("tokens_read", "tokens_total")
ERROR = "prediction_error"
MATRIX = "npy"
SUFFIXES = tuple(suffix for suffix, kind in BY_SUFFIX.items() if kind in FORMATS)  # of --out


@dataclass(frozen=True)
class Progress:
    """How far a job is."""

    rows: int
    tokens: int  # by this process
    seconds: float
    done: int  # of the input, in bytes or rows
    total: int  # 0: not known
    begun: int = 0  # done before this process

    def line(self) -> str:
        """For a log."""
        left = self.left
        share = f"{100 * self.done / self.total:.0f} %, " if self.total else ""
        rate = f", {self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s" if self.tokens else ""
        known = "" if left is None else f", about {_duration(left)} left"
        return f"predict: {share}{quantities.count(self.rows, 'row')}{rate}{known}"

    @property
    def left(self) -> float | None:
        """Seconds to the end, by the part that is done."""
        here = self.done - self.begun
        if not self.total or here <= 0:
            return None
        return self.seconds * (self.total - self.done) / here


def predict_file(
    predictor: Predictor,
    config: RunConfig,
    name: str,
    out: Path,
    *,
    column: str | None = None,
    format: Format = "auto",  # noqa: A002  (the name of the option)
    say: Callable[[str], None],
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Totals:
    """Write the answers to every row of a file to `out`, from wherever an earlier start got to.

    `name` is a file, a folder of texts, or - for standard input. `say` gets every sentence about a
    row that is not answered, `tell` the progress.
    """
    kind = kind_of_input(name, format)
    results = (*predictor.task.columns, *TOKENS, ERROR)
    source = Input(
        name,
        _usual_column(config) if column is None else column,
        kind,
        config.data.max_document_mb,
        _as_text(features=predictor.task.tokenizer is None),
        reserved=results,
    )
    if column is not None and (kind == "text" or source.is_folder):
        raise UserError(f"--column has no effect on {source.shown}, which has no columns.")
    writing = _format_of(out, source, predictor)
    _check_place(out, source, predictor)
    with locked(out):
        job = {
            "input": source.identity(),
            "model": _identity_of_model(predictor),
            "on_overflow": predictor.policy,
            "options": predictor.settings(),
            "columns": list(results),
        }
        more = (rows_file(out),) if writing == MATRIX else ()
        journal = Journal.of(out, job, *more)
        if journal.finished:
            if source.name == STDIN:  # which has no size and no time to tell it from another
                _check_finished(_opened(source, journal), journal, out)
            say(f"{out} is finished: it is as it was.")
            return journal.totals
        if writing == MATRIX and journal.position != journal.totals.rows:
            raise UserError(
                f"{partial_of(out)} must have a row for each of the {journal.totals.rows:,} rows "
                f"that were read: got {journal.position:,}, as earlier versions wrote them. "
                f"{NAME_ANOTHER}"
            )
        rows = _opened(source, journal)
        for path in source.left_out:
            say(f"{path} is no text and is left out.")
        writer = _writer(writing, partial_of(out), source, results, predictor)
        _skip(rows, journal, source)
        if not journal.position:
            journal.save()  # whose partial file this is
        writer.open_at(journal.position)
        _Job(predictor, source, writer, journal, say, tell).run(rows)
        journal.save(finished=True)
        writer.finish(out)
        journal.seal(out, *more)
    return journal.totals


@dataclass
class _Job:
    """The rows of a file on their way through the model."""

    predictor: Predictor
    source: Input
    writer: Writer
    journal: Journal
    say: Callable[[str], None]
    tell: Callable[[Progress], None]

    def run(self, rows: Iterator[Row]) -> None:
        begun, started = self.source.done, time.monotonic()
        before, totals = self.journal.totals.tokens_total, self.journal.totals

        def tell() -> None:
            done = (self.source.done, self.source.total, begun)
            seconds = time.monotonic() - started
            self.tell(Progress(totals.rows, totals.tokens_total - before, seconds, *done))

        tell()
        for pool in self._pools(rows):
            self._answer(pool)
            self.journal.position = self.writer.commit()
            self.journal.save()
            tell()
        self.journal.position = self.writer.commit()

    def _pools(self, rows: Iterator[Row]) -> Iterator[list[tuple[Row, Question | None]]]:
        """Rows with their questions, a pool at a time; a problem is in the row."""
        pool: list[tuple[Row, Question | None]] = []
        tokens, size, batches = 0, 0, 1
        for row in rows:
            note(self.journal, row)
            question = None
            if row.problem is None and row.text is not None:
                try:
                    question = self.predictor.question(row.text)
                    tokens += sum(map(len, question.pieces))
                except UserError as error:
                    row = Row(row.place, row.text, row.raw, str(error))
            pool.append((row, question))
            before, size = size, size + len(row.text or "")
            if size // MB > before // MB:  # what the tokenizer has freed
                release_freed_memory()
            full = tokens >= batches * self.predictor.tokens_per_batch
            if full or len(pool) >= batches * ROWS or size >= batches * MB:
                yield pool
                pool, tokens, size, batches = [], 0, 0, POOL
        if pool:
            yield pool

    def _answer(self, pool: list[tuple[Row, Question | None]]) -> None:
        answers = self._answers(pool)
        totals = self.journal.totals
        written = []
        for row, question in pool:
            totals.rows += 1
            problem, result = row.problem, {}
            if question is not None:
                found = next(answers)
                if isinstance(found, UserError):
                    problem = str(found)
                else:
                    result = self.predictor.task.result(found)
                    result |= self._read(question)
                    if question.left_out is not None:
                        self.say(f"{row.place}: {question.left_out}")
            kept = row.raw is not None or self.writer.every_row
            if problem is None:
                totals.answered += 1
            else:
                self.say(f"{row.place}: {problem}")
                totals.failed += kept
                totals.left_out += not kept
            if kept:
                written.append((row, result | {ERROR: problem}))
        self.writer.write(written)

    def _answers(self, pool: list[tuple[Row, Question | None]]) -> Iterator[Any]:
        """The answers of a pool. What is drawn depends on the number of the row alone."""
        if not self.predictor.task.alone:
            yield from self.predictor.answer([q for _, q in pool if q is not None])
            return
        first = self.journal.totals.rows
        for number, (_, question) in enumerate(pool, start=first):
            if question is not None:
                torch.manual_seed(self.predictor.options.seed + number)
                yield from self.predictor.answer([question])

    def _read(self, question: Question) -> dict[str, int]:
        totals, reading = self.journal.totals, question.reading
        totals.tokens_read += reading.tokens_read
        totals.tokens_total += reading.tokens_total
        totals.longer += bool(
            reading.unread or len(question.pieces) > 1 or question.reach is not None
        )
        return dict(zip(TOKENS, (reading.tokens_read, reading.tokens_total), strict=True))


def _opened(source: Input, journal: Journal) -> Iterator[Row]:
    """The rows of the input; its header is part of the digest."""
    rows = source.open()
    if journal.digest_of == "rows":
        journal.read.update(repr(source.header).encode("utf-8", "replace"))
    return rows


def note(journal: Journal, row: Row) -> None:
    """Add a row to the digest of what was read."""
    seen: tuple[Any, ...] = (row.place, row.text, row.problem)
    if journal.digest_of == "rows":
        # A row of parquet is not text; its file is known by its size and time.
        raw = row.raw if isinstance(row.raw, (str, list)) else row.raw is not None
        seen = (row.place, row.text, raw, row.problem is None)
    journal.read.update(repr(seen).encode("utf-8", "replace"))


def _skip(rows: Iterator[Row], journal: Journal, source: Input) -> None:
    """Pass over the rows that were answered before, which must be the same ones."""
    for _ in range(journal.totals.rows):
        row = next(rows, None)
        if row is not None:
            note(journal, row)
    if journal.totals.rows and not journal.same_rows:
        raise UserError(
            f"the first {quantities.count(journal.totals.rows, 'row')} of {source.shown} "
            "are not those that were "
            f"answered before{_or_earlier(journal)}. {NAME_ANOTHER}"
        )


def _check_finished(rows: Iterator[Row], journal: Journal, out: Path) -> None:
    """Standard input of a finished job must be what was answered, to its end."""
    expected, count = journal.totals.rows, 0
    for row in rows:
        count += 1
        if count > expected:
            break
        note(journal, row)
    if count == expected and journal.same_rows:
        return
    found = "other rows" if count == expected else f"{quantities.count(count, 'row')}"
    if count > expected:
        found = f"more than {quantities.count(expected, 'row')}"
    raise UserError(
        f"{out} is finished and holds the answers to another standard input, of {expected:,} "
        f"rows: got {found}{_or_earlier(journal)}. {NAME_ANOTHER}"
    )


def _or_earlier(journal: Journal) -> str:
    earlier = ", or an earlier version of linformer-kit read them in another way"
    return earlier if journal.digest_of == "texts" else ""


def _usual_column(config: RunConfig) -> str:
    data = config.data
    if data.features is not None:
        return data.features
    return data.source if config.task == "translate" else data.text


def _as_text(*, features: bool) -> Callable[[Any], str]:
    """The text of a value of a column; features are a list, which is asked as JSON."""

    def as_text(value: Any) -> str:
        if features and isinstance(value, list):
            return json.dumps(value)
        if not isinstance(value, str):
            raise ValueError(f"must hold text: got {_kind(value)}.")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("is not text: it holds a lone surrogate.") from None
        return value

    return as_text


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _writer(
    kind: str, partial: Path, source: Input, results: tuple[str, ...], predictor: Predictor
) -> Writer:
    if kind == MATRIX:
        return MatrixWriter(partial, predictor.task.vector_size or 0)
    if kind == "parquet":
        return ParquetWriter(partial, source, results)
    return LineWriter(partial, kind, source, results)


def _format_of(out: Path, source: Input, predictor: Predictor) -> str:
    suffix = out.suffix.lower()
    if suffix == f".{MATRIX}":
        if predictor.task.vector_size is None:
            raise UserError(
                f"a {suffix} file holds vectors, which only the task 'embed' gives: got {out}. "
                f"Use one of {', '.join(SUFFIXES)}."
            )
        return MATRIX
    if suffix in PACKED:
        raise UserError(f"--out is written uncompressed: got {out}. Leave out {suffix}.")
    if suffix not in SUFFIXES:
        raise UserError(
            f"--out must end in {', '.join(SUFFIXES)}, for answers have columns: got {out}."
        )
    kind = BY_SUFFIX[suffix]
    if source.kind not in ("text", kind) and not source.is_folder:
        raise UserError(
            f"answers are written beside the columns of their rows, in the same format: got {out} "
            f"for {source.shown}, which is {source.kind}."
        )
    return kind


def _check_place(out: Path, source: Input, predictor: Predictor) -> None:
    """Refuse an output that is, or lies in, what is read."""
    with user_input(f"cannot write {out}"):
        if not out.parent.is_dir():
            raise UserError(f"cannot write {out}: there is no folder {out.parent}.")
        if out.is_symlink() or (out.exists() and not out.is_file()):
            raise UserError(f"{out} is not a regular file: it is left alone. Name another.")
        place = out.resolve()
        read = [predictor.path.resolve()]
        if source.name != STDIN:
            given = Path(source.name)
            read.append(given.resolve())
            if out.exists() and out.samefile(given):
                raise UserError(f"--out must not be the input: got {out} for both.")
        for folder in read:
            if place == folder or folder in place.parents:
                raise UserError(f"--out must not be in what is read: got {out} in {folder}.")


def _identity_of_model(predictor: Predictor) -> str:
    """The model that answers: its place, and a digest of what its folder lists or holds."""
    manifest = predictor.path / MANIFEST
    paths = [manifest] if manifest.is_file() else sorted(predictor.path.glob("*.safetensors"))
    with user_input(f"cannot read {predictor.path}"):
        return f"{predictor.path.resolve()} {digest(*paths)}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
