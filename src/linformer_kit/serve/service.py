"""From a request's values to an answer: tokenize, queue, wait, within the limits."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..data.encode import Bounds
from ..errors import UserError
from ..machine_memory import release_freed_memory
from ..predict.answers import Options
from .api_errors import ApiError, api_error_of, invalid, time_is_up, too_large
from .metrics import Metrics
from .requests import Generation, Prediction, Preparation
from .scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request as HttpRequest

    from ..data.overflow import Reading
    from ..predict.tasks import Question, TaskPredictor
    from .generation import Sampling
    from .models import ServedModel
    from .requests import Awaited, Written
    from .scheduler import Unit
    from .settings import Settings

# Bytes of a text in which no word of the tokenizer ends, at most; each takes up to 300 in memory. A
# larger max_tokens raises it: a tokenizer of single bytes may read so far.
WIDEST = 2**20
Given = str | list[int]
ENDING = 3.0  # seconds at the end in which the worker may finish what it computes
RELEASE_EVERY = 2.0  # seconds of work after which freed memory is given back to the system


@dataclass(frozen=True)
class Answered:
    """The answers to the inputs of a request, and what they cost."""

    answers: list[list[dict[str, Any]]]
    questions: list[Question]
    seconds_computing: float

    @property
    def tokens_read(self) -> int:
        return sum(each.reading.tokens_read for each in self.questions)

    @property
    def tokens_total(self) -> int:
        return sum(each.reading.tokens_total for each in self.questions)


class Service:
    """The models and the worker behind the routes."""

    def __init__(self, models: dict[str, ServedModel], settings: Settings) -> None:
        self.models = models
        self.settings = settings
        self.metrics = Metrics()
        self.scheduler = Scheduler(
            tokens_per_batch=settings.tokens_per_batch,
            deadline=settings.deadline,
            seen=self._saw,
        )
        self._released = time.monotonic()
        self.metrics.watch(self.scheduler)
        self.ready = False

    def _saw(self, batch: Sequence[Unit], seconds: float) -> None:
        """By the worker, after each batch."""
        self.metrics.saw(batch, seconds)
        if time.monotonic() - self._released > RELEASE_EVERY:
            release_freed_memory()
            self._released = time.monotonic()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compute while the routes are open; what is queued at the end is finished."""
        self.scheduler.start()
        self.ready = True
        try:
            yield
        finally:
            self.ready = False
            await asyncio.to_thread(self.scheduler.stop, within=ENDING)

    def model(self, name: str | None, *, task: str | None = None) -> ServedModel:
        """The model of a request."""
        names = ", ".join(self.models)
        if name is None:
            if len(self.models) > 1:
                raise invalid(f"name a model: {names}.", param="model")
            (found,) = self.models.values()
        elif name in self.models:
            found = self.models[name]
        else:
            raise ApiError(
                404,
                f"there is no model {name[:100]!a}. This server has {names}.",
                code="model_not_found",
                param="model",
            )
        if task is not None and found.task != task:
            raise invalid(
                f"this route is for the task {task!r}, and {found.name} has the task "
                f"{found.task!r}. Use POST /predict.",
                param="model",
            )
        return found

    async def predict(
        self,
        http: HttpRequest,
        model: ServedModel,
        inputs: Sequence[Given],
        options: Options,
        on_overflow: str | None,
    ) -> Answered:
        """The answers of a model to texts, features (as JSON) or token ids."""
        task, questions = await self._questions(http, model, inputs, options, on_overflow)
        request = Prediction(model, task, questions)
        self.scheduler.submit(request.units())
        answers = await self.result_of(http, request)
        made = Answered(answers, questions, request.seconds_computing)
        self.metrics.tokens_read.labels(model.name).inc(made.tokens_read)
        return made

    async def result_of(self, http: HttpRequest, request: Awaited) -> Any:
        """What the worker makes of a request; it is given up if the client goes or time is up."""
        gone = asyncio.create_task(_until_gone(http))
        try:
            waited: set[asyncio.Future[Any]] = {request.result, gone}
            await asyncio.wait(
                waited,
                timeout=self._left(http),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not request.result.done():
                if gone.done():
                    raise asyncio.CancelledError
                raise time_is_up(self.settings.time_limit)
            return request.result.result()
        finally:
            request.cancelled = True
            request.result.cancel()  # an error that comes later is of no one
            gone.cancel()

    async def beginning(
        self, http: HttpRequest, model: ServedModel, text: str, length: int
    ) -> tuple[list[int], Reading]:
        """The first tokens of a text, for the head view, and how many of all these are."""

        def make(check: Callable[[], None]) -> tuple[list[int], Reading]:
            try:
                piece, reading = model.beginning(text, length, self._bounds(check))
            except Exception as error:
                raise api_error_of(error, param="input") from error
            self._check_tokens(reading.tokens_total)
            return piece, reading

        return await self.result_of(http, Preparation(make))

    def _bounds(self, check: Callable[[], None], before: int = 0) -> Bounds:
        """Of the tokens of a text, after those of other texts of the request."""

        def check_tokens(tokens: int) -> None:
            check()
            self._check_tokens(before + tokens)

        return Bounds(check=check_tokens, widest=max(WIDEST, self.settings.max_tokens))

    def _check_tokens(self, tokens: int) -> None:
        if tokens > self.settings.max_tokens:
            raise too_large(
                f"a request may have {self.settings.max_tokens:,} tokens: this has more. "
                "Send less, or start the server with a larger --max-tokens.",
                code="too_many_tokens",
                param="input",
            )

    async def _questions(
        self,
        http: HttpRequest,
        model: ServedModel,
        inputs: Sequence[Given],
        options: Options,
        on_overflow: str | None,
    ) -> tuple[TaskPredictor, list[Question]]:
        """The texts on their way to the model. Long ones take long: the loop does not wait."""
        if not inputs:
            raise invalid("there must be at least one input.", param="input")
        if len(inputs) > self.settings.max_inputs:
            raise too_large(
                f"a request may have {self.settings.max_inputs:,} inputs: got {len(inputs):,}.",
                code="too_many_inputs",
                param="input",
            )

        def make(check: Callable[[], None]) -> tuple[TaskPredictor, list[Question]]:
            task = model.task_with(options, on_overflow)
            questions: list[Question] = []
            tokens = 0
            for number, given in enumerate(inputs):
                try:
                    questions.append(model.question(task, given, self._bounds(check, tokens)))
                except Exception as error:
                    where = "input" if len(inputs) == 1 else f"input[{number}]"
                    raise api_error_of(error, param=where) from error
                tokens += questions[-1].reading.tokens_total
                self._check_tokens(tokens)
            return task, questions

        return await self.result_of(http, Preparation(make))

    async def conversation(
        self, http: HttpRequest, model: ServedModel, messages: list[dict[str, str]]
    ) -> str:
        """The text that a model continues to answer messages."""
        try:
            made = Preparation(lambda check: model.conversation(messages))
            return str(await self.result_of(http, made))
        except UserError as error:
            raise api_error_of(error, param="messages") from error

    async def generation(
        self,
        http: HttpRequest,
        model: ServedModel,
        prompt: Given,
        sampling: Sampling,
        on_overflow: str | None,
    ) -> Generation:
        """A text that begins to be written."""
        if sampling.max_new_tokens > self.settings.max_new_tokens:
            raise too_large(
                f"at most {self.settings.max_new_tokens:,} tokens are written for a request: got "
                f"{sampling.max_new_tokens:,}. Ask for fewer, or start the server with a larger "
                "--max-new-tokens.",
                code="too_many_tokens",
                param="max_new_tokens",
            )
        options = Options(max_new_tokens=sampling.max_new_tokens)
        _, (question,) = await self._questions(http, model, [prompt], options, on_overflow)
        request = Generation(model, question, sampling, self.scheduler)
        self.scheduler.submit([request.unit(len(question.pieces[0]))])
        self.metrics.tokens_read.labels(model.name).inc(question.reading.tokens_read)
        return request

    async def written(self, http: HttpRequest, request: Generation) -> AsyncIterator[Written]:
        """The text as it is written; ends it if the client goes or the time is up."""
        news = request.written().__aiter__()
        gone = asyncio.create_task(_until_gone(http))
        following: asyncio.Future[Written] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(news))
                await asyncio.wait(
                    {following, gone},
                    timeout=self._left(http),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not following.done():
                    if gone.done():
                        raise asyncio.CancelledError
                    raise time_is_up(self.settings.time_limit)
                try:
                    yield following.result()
                except StopAsyncIteration:
                    return
        finally:
            request.cancelled = True
            gone.cancel()
            if following is not None:  # a generator that waits cannot be closed
                following.cancel()
            self.metrics.tokens_written.labels(request.model.name).inc(request.tokens_written)

    def _left(self, http: HttpRequest) -> float:
        """Seconds that a request still has."""
        return max(0.0, self.settings.time_limit - seconds_since(http))


def seconds_since(http: HttpRequest) -> float:
    """Since the arrival of a request."""
    return time.monotonic() - float(http.state.begin)


async def _until_gone(http: HttpRequest) -> None:
    """Ends when the client closes the connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
