"""POST /heads: what `linformer heads` shows of one head, on the beginning of a text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..data.encode import encode_long
from ..data.overflow import Overflow
from ..evidence.analysis.encoders import TextEncoder
from ..evidence.analysis.heads import layers_with_matrix, look_at_head
from ..evidence.analysis.tokens import token_texts
from .api_errors import invalid
from .events import Json
from .folders import SentenceModel
from .requests import Awaited
from .scheduler import Unit
from .schema import HEAD_TOKENS, HeadsBody, parse
from .service import seconds_since

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from ..data.encode import Bounds
    from ..data.overflow import Reading
    from ..measure.records import Record
    from ..predict.answers import Predictor
    from .models import ServedModel
    from .service import Service


class HeadView:
    """The encoder of a model, whose heads can be looked at, or why they cannot."""

    def __init__(self, name: str, predictor: Predictor) -> None:
        self.why_not: str | None = None
        self.layers: list[int] = []  # those with an E, from 1
        self.heads = 0
        self._predictor = predictor
        try:
            self._encoder = _encoder_of(name, predictor)
            layers = layers_with_matrix(self._encoder)
        except ValueError as error:
            self.why_not = str(error)
            return
        self.layers = list(layers)
        self.heads = next(iter(layers.values())).attention.num_heads

    def describe(self) -> dict[str, Any] | None:
        """For clients: what may be asked for."""
        if self.why_not is not None:
            return None
        return {"layers": self.layers, "heads": self.heads, "max_length": HEAD_TOKENS}

    def check(self, layer: int, head: int) -> None:
        """An ApiError for a head that is not there."""
        if self.why_not is not None:
            raise invalid(self.why_not, param="model")
        if layer not in self.layers:
            known = ", ".join(map(str, self.layers))
            raise invalid(f"layer must be one of {known}: got {layer}.", param="layer")
        if head > self.heads:
            raise invalid(f"head must be at most {self.heads}: got {head}.", param="head")

    def piece(self, text: str, length: int, bounds: Bounds) -> tuple[list[int], Reading]:
        """The first `length` tokens of a text in their frame, and how many of all these are."""
        task = self._predictor.task
        most = task.overflow.max_length
        overflow = Overflow(
            "truncate", length if most is None else min(length, most), task.frame.size
        )
        ids = encode_long(task.tokenizer, text, bounds).ids
        pieces = overflow.pieces(len(ids))
        return task.frame(ids[: pieces[0].stop]), overflow.reading(len(ids), pieces)

    def look(self, piece: list[int], layer: int, head: int) -> Record:
        """By the worker."""
        found = look_at_head(self._encoder, piece, layer=layer, head=head, all_matrices=False)
        return {**found, "tokens": token_texts(self._encoder.tokenizer, piece)}


class HeadRequest(Awaited):
    """One head of a model on token ids; the result is a record."""

    def __init__(self, model: ServedModel, piece: list[int], layer: int, head: int) -> None:
        super().__init__()
        self.model = model
        self.piece = piece
        self.layer, self.head = layer, head
        self.seconds_computing = 0.0

    def unit(self) -> Unit:
        return _HeadUnit(self, rate=f"{self.model.name} heads", tokens=len(self.piece))


class _HeadUnit(Unit):
    request: HeadRequest

    def run(self, batch: Sequence[Unit], pause: Callable[[], bool]) -> None:
        begin = time.monotonic()
        request = self.request
        found = request.model.head_view.look(request.piece, request.layer, request.head)
        request.seconds_computing = time.monotonic() - begin
        request.resolve(found)


async def heads(service: Service, http: HttpRequest) -> Response:
    """POST /heads"""
    body = parse(HeadsBody, await http.body())
    model = service.model(body.model)
    model.head_view.check(body.layer, body.head)
    piece, reading = await service.beginning(http, model, body.input, body.length)
    request = HeadRequest(model, piece, body.layer, body.head)
    service.scheduler.submit([request.unit()])
    found = await service.result_of(http, request)
    service.metrics.tokens_read.labels(model.name).inc(reading.tokens_read)
    return Json(
        {
            "model": model.name,
            "task": model.task,
            "backend": model.backend,
            **found,
            "tokens_read": reading.tokens_read,
            "tokens_total": reading.tokens_total,
            "seconds": seconds_since(http),
            "seconds_computing": request.seconds_computing,
        }
    )


def _encoder_of(name: str, predictor: Predictor) -> TextEncoder:
    """The encoder in a model, a ValueError if it has none that can be looked into."""
    model = predictor.model
    if predictor.onnx is not None:
        raise ValueError(
            f"{name} is an exported graph, which gives no attention weights. Serve its folder "
            "without --onnx to look at its heads."
        )
    config = model.config
    if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} writes text: the heads of encoders can be looked at.")
    if predictor.tokenizer is None:
        raise ValueError(f"{name} reads features: heads can be looked at where tokens are read.")
    if isinstance(model, SentenceModel):
        model = model.embedder.encoder
    model = getattr(model, "linformer", model)
    return TextEncoder(name, model, predictor.tokenizer, predictor.task.overflow.max_length)
