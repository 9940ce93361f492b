"""Requests on their way through the scheduler: predictions, and texts that are written.

Both are made on the event loop and computed by the worker; what they tell the loop goes through
`call_soon_threadsafe`. What comes before the queue is made by a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..evaluate.translations import room
from ..machine_memory import release_freed_memory
from .generation import OnnxDecoder, TorchDecoder, Writing
from .scheduler import Request, Unit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from ..predict.tasks import Question, TaskPredictor
    from .generation import Sampling
    from .models import ServedModel
    from .scheduler import Scheduler

LONG = 0.1  # seconds of a preparation after which freed memory is given back to the system
PENDING = 256  # pieces of written text that may wait for a slow client


class Awaited(Request):
    """A request with one result: a future of the event loop, which the worker resolves."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.result: asyncio.Future[Any] = self._loop.create_future()

    def resolve(self, result: Any) -> None:
        """By the worker."""
        _tell(self._loop, self._resolve, result)

    def failed(self, error: BaseException) -> None:
        _tell(self._loop, self._reject, error)

    def _resolve(self, result: Any) -> None:
        if not self.result.done():
            self.result.set_result(result)

    def _reject(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)


def _tell(loop: asyncio.AbstractEventLoop, heard: Callable[..., Any], *values: Any) -> None:
    with suppress(RuntimeError):  # the loop has ended, and work that was given up has not
        loop.call_soon_threadsafe(heard, *values)


class GivenUpError(Exception):
    """Nobody waits for the result any more."""


class Preparation(Awaited):
    """What is made of a request before it is queued, such as the tokens of its texts.

    It has a thread of its own, which ends at its next check when the request is given up, and with
    the process: nothing waits for it.
    """

    def __init__(self, make: Callable[[Callable[[], None]], Any]) -> None:
        super().__init__()
        threading.Thread(
            target=self._run, args=(make,), name="linformer-preparation", daemon=True
        ).start()

    def _run(self, make: Callable[[Callable[[], None]], Any]) -> None:
        begin = time.monotonic()
        try:
            self.resolve(make(self._check))
        except BaseException as error:  # a panic of the package tokenizers is no Exception
            for each in (error, error.__cause__):
                traceback.clear_frames(getattr(each, "__traceback__", None))  # what they hold
            self.failed(error if isinstance(error, Exception) else RuntimeError(str(error)))
        if time.monotonic() - begin > LONG:
            release_freed_memory()

    def _check(self) -> None:
        if self.cancelled:
            raise GivenUpError


class Prediction(Awaited):
    """Questions of one request; the result is the list of answers to each."""

    def __init__(self, model: ServedModel, task: TaskPredictor, questions: list[Question]) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.questions = questions
        self.seconds_computing = 0.0
        self._outputs: list[list[Any]] = [[None] * len(each.pieces) for each in questions]
        self._left = sum(len(each.pieces) for each in questions)

    def units(self) -> list[Unit]:
        return [
            PieceUnit(self, number, piece)
            for number, question in enumerate(self.questions)
            for piece in range(len(question.pieces))
        ]

    def done(self, number: int, piece: int, output: Any, seconds: float) -> None:
        """By the worker."""
        self._outputs[number][piece] = output
        self.seconds_computing += seconds
        self._left -= 1
        if self._left == 0 and not self.cancelled:
            merged = [
                self.task.merge(question, outputs)
                for question, outputs in zip(self.questions, self._outputs, strict=True)
            ]
            self.resolve(merged)


class PieceUnit(Unit):
    """One piece of a text."""

    request: Prediction

    def __init__(self, request: Prediction, number: int, piece: int) -> None:
        self.number, self.piece = number, piece
        question = request.questions[number]
        self.ids = question.pieces[piece]
        self.reach = question.reach
        super().__init__(
            request,
            rate=request.model.name,
            tokens=len(self.ids),
            key=request.model.batch_key(request.task, question, piece),
        )

    def run(self, batch: Sequence[Unit], pause: Callable[[], bool]) -> None:
        units = [unit for unit in batch if isinstance(unit, PieceUnit)]
        places = [(u.request.questions[u.number].facts, u.piece) for u in units]
        begin = time.monotonic()
        model, task = self.request.model, self.request.task
        outputs = model.forward(task, [unit.ids for unit in units], self.reach, places)
        share = (time.monotonic() - begin) / len(units)  # they have the same length
        for unit, output in zip(units, outputs, strict=True):
            try:
                unit.request.done(unit.number, unit.piece, output, share)
            except Exception as error:  # of this request alone
                unit.request.cancelled = True
                unit.request.failed(error)


@dataclass(frozen=True)
class Written:
    """A piece of written text, or the end."""

    text: str
    tokens: int
    finish_reason: str | None = None


class Generation(Request):
    """A text that is written, and the queue of what is there already."""

    def __init__(
        self,
        model: ServedModel,
        question: Question,
        sampling: Sampling,
        scheduler: Scheduler,
    ) -> None:
        super().__init__()
        self.model = model
        self.question = question
        self.sampling = sampling
        self._scheduler = scheduler
        self._writing: Writing | None = None
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[Written | BaseException] = asyncio.Queue()
        self._parked = False
        self.seconds_computing = 0.0
        self.tokens_written = 0

    def unit(self, tokens: int = 1) -> Unit:
        return SliceUnit(self, rate=f"{self.model.name} generation", tokens=tokens)

    def failed(self, error: BaseException) -> None:
        self._publish(error)

    async def written(self) -> AsyncIterator[Written]:
        """Pieces of text as they come, those that wait together as one; the last has a reason."""
        while True:
            news = [await self._news.get()]
            while not self._news.empty():
                news.append(self._news.get_nowait())
            if self._parked:
                self._parked = False
                self._scheduler.submit([self.unit()])
            texts = [one for one in news if isinstance(one, Written)]
            if texts:
                last = texts[-1]
                self.tokens_written = last.tokens
                text = "".join(one.text for one in texts)
                yield Written(text, last.tokens, last.finish_reason)
                if last.finish_reason is not None:
                    return
            for one in news:
                if isinstance(one, BaseException):
                    raise one

    def advance(self, pause: Callable[[], bool]) -> bool:
        """By the worker: whether there is more to do."""
        begin = time.monotonic()
        if self._writing is None:
            self._writing = self._begun()
        writing = self._writing
        more = writing.advance(
            lambda text: self._publish(Written(text, writing.written)),
            lambda: self.cancelled or pause() or self._news.qsize() > PENDING,
        )
        self.seconds_computing += time.monotonic() - begin
        if not more:
            self._publish(Written("", writing.written, writing.finish_reason))
            return False
        if self._news.qsize() > PENDING:
            self._parked = True  # the client is slow: resume when it has read
            _tell(self._loop, self._unpark)
            return False
        return True

    def _unpark(self) -> None:
        """If the client has read everything before it was told to wake the worker."""
        if self._parked and self._news.empty():
            self._parked = False
            self._scheduler.submit([self.unit()])

    def _begun(self) -> Writing:
        model = self.model.predictor.reaching(self.question.reach)
        ids = self.question.pieces[0].tolist()
        if not ids:
            raise UserError("the input is empty.")
        most = room(model, self.sampling.max_new_tokens, used=len(ids))
        sampling = replace(self.sampling, max_new_tokens=most)
        graph = getattr(model, "graph", None)
        decoder = TorchDecoder(model) if graph is None else OnnxDecoder(graph)
        end = model.config.eos_token_id
        ends = [] if end is None else end if isinstance(end, list) else [end]
        return Writing(decoder, self.model.predictor.tokenizer, ids, sampling, ends)

    def _publish(self, news: Written | BaseException) -> None:
        _tell(self._loop, self._news.put_nowait, news)


class SliceUnit(Unit):
    """A slice of a prompt, or as many tokens as may be written before others are looked at."""

    request: Generation

    def run(self, batch: Sequence[Unit], pause: Callable[[], bool]) -> Unit | None:
        before = 0 if self.request._writing is None else self.request._writing.written
        more = self.request.advance(pause)
        writing = self.request._writing
        self.tokens = max(1, 0 if writing is None else writing.written - before)
        return self.request.unit(self.tokens) if more else None
